// Sequential in C++.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <torchvq/modules/fsq.h>
#include <torchvq/modules/sequential.h>
#include <torchvq/modules/state_dict.h>

namespace torchvq::sequential_test {
namespace {

using torch::nn::Linear;
using torch::nn::Tanh;

torch::Tensor normal(at::IntArrayRef sizes) {
  torch::manual_seed(7);
  return torch::randn(sizes);
}

TEST(SequentialTest, IsItsModulesInTurn) {
  Linear first(6, 8), last(8, 5);
  VectorQuantize quantizer(VectorQuantizeOptions(8).codebook_size(16));
  Sequential model(first, Tanh(), quantizer, Tanh(), last);
  model->eval();
  const auto x = normal({2, 7, 6});
  const auto output = model(x);
  const auto inner = quantizer(first(x).tanh());
  EXPECT_TRUE(at::equal(output.quantized, last(inner.quantized.tanh())));
  EXPECT_TRUE(at::equal(output.indices, inner.indices));
  EXPECT_EQ(model->quantizer().get(), quantizer.get());
}

TEST(SequentialTest, ArgumentsReachTheQuantizer) {
  Sequential model(VectorQuantize(VectorQuantizeOptions(6).codebook_size(16)), Tanh());
  const auto x = normal({2, 3, 6});
  const auto mask = torch::tensor({{true, false, true}, {false, true, true}});
  const auto output = model(x, VectorQuantizeForwardOptions().mask(mask));
  EXPECT_TRUE(output.indices.index({mask.logical_not()}).eq(-1).all().item<bool>());
  Sequential targets(Tanh(), RandomProjectionQuantizer(RandomProjectionQuantizerOptions(6, 11, 4)));
  const auto indices = targets(x, RandomProjectionQuantizerForwardOptions().mask(mask));
  EXPECT_TRUE(at::equal(indices.eq(-1), mask.logical_not()));
}

TEST(SequentialTest, TrainsAndCopies) {
  Sequential model(Linear(4, 3), FSQ(FSQOptions({5, 5, 3})), Linear(3, 4));
  std::vector<std::string> names;
  for (const auto& [name, value] : state_dict(*model)) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"fns.0.bias", "fns.0.weight", "fns.2.bias", "fns.2.weight"}));
  const auto x = normal({2, 7, 4});
  const auto before = model(x).quantized.detach();
  const auto twin = std::dynamic_pointer_cast<decltype(model)::ContainedType>(model->clone());
  EXPECT_TRUE(at::equal(twin->forward(x).quantized, before));
  model(x).quantized.sum().backward();
  for (auto& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.grad().defined());
    const torch::NoGradGuard no_grad;
    parameter.add_(1);
  }
  EXPECT_TRUE(at::equal(twin->forward(x).quantized, before));
  EXPECT_FALSE(at::equal(model(x).quantized, before));
}

/// A user's module around a Sequential.
struct AroundImpl : torch::nn::Cloneable<AroundImpl> {
  using Inside = Sequential<torch::nn::Linear, VectorQuantize>;

  AroundImpl() { reset(); }
  void reset() override {
    inside.emplace(torch::nn::Linear(8, 8),
                   VectorQuantize(VectorQuantizeOptions(8).codebook_size(16)));
    register_module("inside", inside->ptr());
  }

  std::optional<Inside> inside;
};

TEST(SequentialTest, IsCopiedAsAChild) {
  AroundImpl one;
  const auto x = at::randn({2, 5, 8});
  (*one.inside)(x);
  const auto copy = std::dynamic_pointer_cast<AroundImpl>(one.clone());
  one.eval();
  copy->eval();
  EXPECT_TRUE(at::equal((*one.inside)(x).quantized, (*copy->inside)(x).quantized));
  const auto own = one.parameters(), copied = copy->parameters();
  ASSERT_EQ(own.size(), copied.size());
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(at::equal(own[i], copied[i]));
    EXPECT_FALSE(own[i].is_alias_of(copied[i]));
  }
}

}  // namespace
}  // namespace torchvq::sequential_test
