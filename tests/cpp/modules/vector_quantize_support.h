// Helpers shared by the tests of the VectorQuantize module.
#pragma once

#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include <torch/nn/cloneable.h>
#include <torch/types.h>

#include <torchvq/modules/state_dict.h>
#include <torchvq/modules/vector_quantize.h>

#include "expect_throw.h"

namespace torchvq::testing {

using Options = VectorQuantizeOptions;
using CallOptions = VectorQuantizeForwardOptions;
using State = std::map<std::string, torch::Tensor>;

/// The same numbers for the same seed, whatever was drawn before.
inline torch::Tensor normal(at::IntArrayRef size, uint64_t seed = 1) {
  return at::randn(size, at::detail::createCPUGenerator(seed), at::kFloat);
}

/// A module whose codes have the size of the data.
inline VectorQuantize make(const Options& options, uint64_t seed = 0) {
  VectorQuantize module(options);
  if (module->codebook_state->initialised()) {
    auto codes = normal(module->codebook_state->embed.sizes(), seed);
    module->set_codebook(options.use_cosine_sim() ? codes / codes.norm(2, -1, true) : codes);
  }
  return module;
}

inline State copy_of(const State& state) {
  State copy;
  for (const auto& [name, value] : state) {
    copy[name] = value.detach().clone();
  }
  return copy;
}

inline State state_of(const VectorQuantize& module) { return copy_of(state_dict(*module)); }

inline void expect_same_state(const State& actual, const State& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(actual.contains(name)) << name;
    EXPECT_EQ(actual.at(name).scalar_type(), value.scalar_type()) << name;
    EXPECT_TRUE(at::equal(actual.at(name), value)) << name;
  }
}

/// Expects an error of a call that leaves the state of the module as it was.
template <typename Error, typename Module>
void leaves_no_trace(Module& module, const std::function<void()>& call,
                     const std::string& fragment) {
  const auto before = copy_of(state_dict(*module));
  expect_throw_with<Error>(call, fragment);
  expect_same_state(state_dict(*module), before);
}

/// A bridge of a user, which throws std::runtime_error after `calls` more calls.
struct FragileBridgeImpl : torch::nn::Cloneable<FragileBridgeImpl> {
  static constexpr int kNever = -1;
  void reset() override {}
  torch::Tensor forward(const torch::Tensor& codes) {
    if (calls == 0) throw std::runtime_error("a bridge that fails");
    if (calls != kNever) --calls;
    return codes * 1;
  }
  static inline int calls = kNever;
};
TORCH_MODULE(FragileBridge);

/// A forward whose bridge fails after `calls` calls must leave the state.
template <typename Model>
void expect_undone(Model model, const torch::Tensor& x, int calls) {
  const auto before = copy_of(state_dict(*model));
  FragileBridge::Impl::calls = calls;
  EXPECT_THROW(model(x), std::runtime_error);
  FragileBridge::Impl::calls = FragileBridge::Impl::kNever;
  expect_same_state(copy_of(state_dict(*model)), before);
  EXPECT_NO_THROW(model(x));
}

/// The nearest code of each token (T, D) among (K, D), in float64, the lowest index first.
inline torch::Tensor brute_force(const torch::Tensor& x, const torch::Tensor& codes) {
  const auto difference = x.to(at::kDouble).unsqueeze(1) - codes.to(at::kDouble).unsqueeze(0);
  return difference.square().sum(-1).argmin(-1);
}

}  // namespace torchvq::testing
