// Every module decodes integers of any width, as those of Python do, and nothing else.
#include <functional>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <torchvq/torchvq.h>

#include "expect_throw.h"

namespace torchvq::integer_indices_test {
namespace {

using testing::expect_throw_with;
using Decode = std::function<at::Tensor(const at::Tensor&)>;

constexpr int64_t kDim = 4;

void expect_any_integers(const char* owner, const at::Tensor& indices, const Decode& decode) {
  SCOPED_TRACE(owner);
  const auto expected = decode(indices);
  for (const auto dtype : {at::kByte, at::kShort, at::kInt, at::kUInt16, at::kUInt64}) {
    EXPECT_TRUE(at::equal(decode(indices.to(dtype)), expected)) << dtype;
  }
  for (const auto dtype : {at::kFloat, at::kBool}) {
    expect_throw_with<c10::TypeError>([&] { decode(indices.to(dtype)); },
                                      "expected indices to be integers, but got ");
  }
  // Not -1, which means a token without a code.
  const auto far = at::full_like(indices, -1).to(at::kUInt64);
  expect_throw_with<c10::IndexError>([&] { decode(far); }, "");
}

at::Tensor indices_of(at::IntArrayRef shape) { return at::randint(0, 8, shape, at::kLong); }

TEST(IntegerIndicesTest, Codebooks) {
  VectorQuantize vq(VectorQuantizeOptions(kDim).codebook_size(8));
  expect_any_integers("VectorQuantize", indices_of({2, 5}),
                      [&](const auto& own) { return vq->get_output_from_indices(own); });
  VectorQuantize heads(VectorQuantizeOptions(kDim).codebook_size(8).heads(2).codebook_dim(2));
  expect_any_integers("heads", indices_of({2, 5, 2}),
                      [&](const auto& own) { return heads->get_codes_from_indices(own); });
  SimVQ sim(SimVQOptions(kDim, 8));
  expect_any_integers("SimVQ", indices_of({2, 5}),
                      [&](const auto& own) { return sim->indices_to_codes(own); });
  HierarchicalVQ scales(HierarchicalVQOptions(kDim, 8, std::vector<int64_t>{1, 4}));
  expect_any_integers("HierarchicalVQ", indices_of({2, 5}), [&](const auto& own) {
    return scales->get_output_from_indices({own.narrow(1, 0, 1), own.narrow(1, 1, 4)});
  });
}

TEST(IntegerIndicesTest, Stacks) {
  const auto options = ResidualVQOptions(kDim).num_quantizers(3).codebook_size(8);
  ResidualVQ rvq(options);
  expect_any_integers("ResidualVQ", indices_of({2, 5, 3}),
                      [&](const auto& own) { return rvq->get_output_from_indices(own); });
  expect_any_integers("ResidualVQ, codes", indices_of({2, 5, 3}),
                      [&](const auto& own) { return rvq->get_codes_from_indices(own); });
  GroupedResidualVQ groups(GroupedResidualVQOptions(2 * kDim).groups(2).rvq(options));
  expect_any_integers("GroupedResidualVQ", indices_of({2, 2, 5, 3}),
                      [&](const auto& own) { return groups->get_output_from_indices(own); });
  ResidualSimVQ sim(ResidualSimVQOptions(kDim, 3, 8));
  expect_any_integers("ResidualSimVQ", indices_of({2, 5, 3}),
                      [&](const auto& own) { return sim->get_output_from_indices(own); });
  ResidualFSQ fsq(ResidualFSQOptions({2, 4}, 3).dim(kDim));
  expect_any_integers("ResidualFSQ", indices_of({2, 5, 3}),
                      [&](const auto& own) { return fsq->get_output_from_indices(own); });
  ResidualLFQ lfq(ResidualLFQOptions(kDim, 3, 8));
  expect_any_integers("ResidualLFQ", indices_of({2, 5, 3}),
                      [&](const auto& own) { return lfq->get_output_from_indices(own); });
}

TEST(IntegerIndicesTest, Scalars) {
  FSQ fsq(FSQOptions({3, 3}));
  expect_any_integers("FSQ", indices_of({2, 5}),
                      [&](const auto& own) { return fsq->indices_to_codes(own); });
  FSP fsp(FSPOptions({2, 4}));
  expect_any_integers("FSP", indices_of({2, 5}),
                      [&](const auto& own) { return fsp->indices_to_codes(own, 1e-6); });
  LatentQuantize latent(LatentQuantizeOptions({2, 4}, 2));
  expect_any_integers("LatentQuantize", indices_of({2, 5}),
                      [&](const auto& own) { return latent->indices_to_codes(own); });
  LFQ lfq(LFQOptions().codebook_size(8).dim(3));
  expect_any_integers("LFQ", indices_of({2, 5}),
                      [&](const auto& own) { return lfq->indices_to_codes(own); });
  BinaryMapper mapper(BinaryMapperOptions().bits(3));
  const auto logits = at::randn({2, 5, 3});
  expect_any_integers("BinaryMapper", indices_of({2, 5}),
                      [&](const auto& own) { return mapper->log_prob(logits, own); });
}

TEST(IntegerIndicesTest, SparseOnesAreRefused) {
  const auto sparse = indices_of({2, 5}).to_sparse();
  VectorQuantize vq(VectorQuantizeOptions(kDim).codebook_size(8));
  expect_throw_with<c10::TypeError>([&] { vq->get_output_from_indices(sparse); },
                                    "VectorQuantize: expected indices to be a dense tensor");
  expect_throw_with<c10::TypeError>(
      [&] { vq(at::randn({2, 5, kDim}), VectorQuantizeForwardOptions().indices(sparse)); },
      "VectorQuantize: expected indices to be a dense tensor");
}

TEST(IntegerIndicesTest, Targets) {
  VectorQuantize vq(VectorQuantizeOptions(kDim).codebook_size(8));
  const auto x = at::randn({2, 5, kDim}), targets = indices_of({2, 5});
  vq->eval();
  const auto wide = vq(x, VectorQuantizeForwardOptions().indices(targets));
  const auto narrow = vq(x, VectorQuantizeForwardOptions().indices(targets.to(at::kShort)));
  EXPECT_TRUE(at::equal(narrow.loss, wide.loss));
}

}  // namespace
}  // namespace torchvq::integer_indices_test
