// Runs of VectorQuantize that are resumed, shared by the tests of its state and of its copies.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "modules/vector_quantize_support.h"

namespace torchvq::testing::resumed {

constexpr int64_t kDim = 8;
constexpr int64_t kCodes = 16;

inline Options options() { return Options(kDim).codebook_size(kCodes); }

/// A residual linear layer over the codes.
struct BridgeImpl : torch::nn::Cloneable<BridgeImpl> {
  BridgeImpl() { reset(); }
  void reset() override { linear = register_module("linear", torch::nn::Linear(kDim, kDim)); }
  torch::Tensor forward(const torch::Tensor& codes) { return codes + linear(codes); }
  torch::nn::Linear linear{nullptr};
};
TORCH_MODULE(Bridge);

template <typename Optimizer, typename OptimizerOptions>
Options in_place(OptimizerOptions rates) {
  return options().learnable_codebook(true).ema_update(false).in_place_codebook_optimizer(
      [rates](std::vector<torch::Tensor> parameters) {
        return std::make_shared<Optimizer>(std::move(parameters), rates);
      });
}

inline Options with_adam() { return in_place<torch::optim::Adam>(torch::optim::AdamOptions(0.05)); }

inline void train(VectorQuantize& module, int first, int last) {
  for (int step = first; step < last; ++step) {
    auto loss = module(normal({2, 30, kDim}, 100 + step)).loss;
    loss.backward();
    module->zero_grad();
  }
}

/// Configurations that differ in their state.
inline std::map<std::string, Options> configurations() {
  return {
      {"default", options()},
      {"kmeans", options().kmeans_init(true).threshold_ema_dead_code(2)},
      {"affine", options().affine_param(true)},
      {"cosine", options().use_cosine_sim(true)},
      {"norm", options().codebook_dim(3).layernorm_after_project_in(true)},
      {"projected", options().heads(2).codebook_dim(3).separate_codebook_per_head(true)},
      {"sampling", options().stochastic_sample_codes(true)},
      {"orthogonal", options().orthogonal_reg_weight(0.5)},
      {"bridge", options().vq_bridge(torch::nn::AnyModule(Bridge()))},
      {"adam", with_adam()},
      {"sgd", in_place<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9))},
      {"adamw", in_place<torch::optim::AdamW>(torch::optim::AdamWOptions(0.05))},
      {"rmsprop", in_place<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.05))},
      {"adagrad", in_place<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05))},
  };
}

/// A module with the same options that shares nothing with the other one.
inline VectorQuantize another(Options given) {
  given.vq_bridge(given.vq_bridge().clone());
  return make(given, /*seed=*/7);
}

/// A resumed run must continue like the uninterrupted one.
inline void expect_continues_alike(VectorQuantize& resumed, VectorQuantize& original) {
  expect_same_state(state_of(resumed), state_of(original));
  train(resumed, 3, 6);
  train(original, 3, 6);
  expect_same_state(state_of(resumed), state_of(original));
}

}  // namespace torchvq::testing::resumed
