// A module in half precision decodes in its dtype, whose values are those of float32, rounded.
#include <functional>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include <torchvq/torchvq.h>

namespace torchvq::half_precision_test {
namespace {

constexpr int64_t kDim = 4;

/// Checks a module without parameters, and its copy; `decode` takes an implementation.
template <typename Module>
void expect_its_dtype(const char* owner, Module module,
                      const std::function<at::Tensor(typename Module::Impl&)>& decode) {
  using Impl = Module::Impl;
  SCOPED_TRACE(owner);
  const auto wide = decode(*module);
  EXPECT_EQ(wide.scalar_type(), at::kFloat);
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    module->to(dtype);
    const auto decoded = decode(*module);
    EXPECT_EQ(decoded.scalar_type(), dtype);
    if (module->parameters().empty()) EXPECT_TRUE(at::equal(decoded, wide.to(dtype)));
    module->to(at::Device(at::kCPU));
    EXPECT_EQ(decode(*module).scalar_type(), dtype);
    const auto copy = std::dynamic_pointer_cast<Impl>(module->clone());
    EXPECT_TRUE(at::equal(decode(*copy), decoded));
  }
  module->to(at::kFloat);
  EXPECT_EQ(decode(*module).scalar_type(), at::kFloat);
  module->to(at::Device(at::kCPU), at::kHalf);
  EXPECT_EQ(decode(*module).scalar_type(), at::kHalf);
}

at::Tensor indices_of(at::IntArrayRef shape) { return at::randint(0, 8, shape, at::kLong); }

TEST(HalfPrecisionTest, Codebooks) {
  const auto indices = indices_of({2, 5});
  const auto options = VectorQuantizeOptions(kDim).codebook_size(8);
  expect_its_dtype("VectorQuantize, codes", VectorQuantize(options),
                   [&](auto& own) { return own.get_codes_from_indices(indices); });
  expect_its_dtype("VectorQuantize", VectorQuantize(options),
                   [&](auto& own) { return own.get_output_from_indices(indices); });
  expect_its_dtype("SimVQ", SimVQ(SimVQOptions(kDim, 8)),
                   [&](auto& own) { return own.indices_to_codes(indices); });
  const HierarchicalVQOptions scales(kDim, 8, std::vector<int64_t>{1, 4});
  expect_its_dtype("HierarchicalVQ", HierarchicalVQ(scales), [&](auto& own) {
    return own.get_output_from_indices({indices.narrow(1, 0, 1), indices.narrow(1, 1, 4)});
  });
}

TEST(HalfPrecisionTest, Stacks) {
  const auto indices = indices_of({2, 5, 3});
  const auto options = ResidualVQOptions(kDim).num_quantizers(3).codebook_size(8);
  const auto output = [&](auto& own) { return own.get_output_from_indices(indices); };
  const auto codes = [&](auto& own) { return own.get_codes_from_indices(indices); };
  expect_its_dtype("ResidualVQ", ResidualVQ(options), output);
  expect_its_dtype("ResidualVQ, codes", ResidualVQ(options), codes);
  expect_its_dtype("ResidualSimVQ", ResidualSimVQ(ResidualSimVQOptions(kDim, 3, 8)), output);
  const auto levels = ResidualFSQOptions({2, 4}, 3).dim(2);
  expect_its_dtype("ResidualFSQ", ResidualFSQ(levels), output);
  expect_its_dtype("ResidualFSQ, codes", ResidualFSQ(levels), codes);
  expect_its_dtype("ResidualLFQ", ResidualLFQ(ResidualLFQOptions(3, 3, 8)), output);
  const auto grouped = indices_of({2, 2, 5, 3});
  const auto groups = GroupedResidualVQOptions(2 * kDim).groups(2).rvq(options);
  expect_its_dtype("GroupedResidualVQ", GroupedResidualVQ(groups),
                   [&](auto& own) { return own.get_output_from_indices(grouped); });
}

TEST(HalfPrecisionTest, Scalars) {
  const auto indices = indices_of({2, 5});
  const auto codes = [&](auto& own) { return own.indices_to_codes(indices); };
  expect_its_dtype("FSQ", FSQ(FSQOptions({3, 3})), codes);
  expect_its_dtype("FSP", FSP(FSPOptions({2, 4})), codes);
  expect_its_dtype("LFQ", LFQ(LFQOptions().codebook_size(8).dim(3)), codes);
  const LatentQuantizeOptions latent({2, 4}, 2);
  expect_its_dtype("LatentQuantize", LatentQuantize(latent), codes);
}

TEST(HalfPrecisionTest, Projections) {
  VectorQuantize vq(VectorQuantizeOptions(6).codebook_dim(kDim).codebook_size(8));
  vq->to(at::kBFloat16);
  EXPECT_EQ(vq->get_codes_from_indices(indices_of({2, 5})).scalar_type(), at::kBFloat16);
  EXPECT_EQ(vq->get_output_from_indices(indices_of({2, 5})).scalar_type(), at::kBFloat16);
}

}  // namespace
}  // namespace torchvq::half_precision_test
