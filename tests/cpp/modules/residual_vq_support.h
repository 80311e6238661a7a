// Helpers shared by the tests of the residual stacks.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <torchvq/modules/grouped_residual_vq.h>

#include "modules/vector_quantize_support.h"

namespace torchvq::testing {

using StackOptions = ResidualVQOptions;
using StackCall = ResidualVQForwardOptions;

constexpr int64_t kDim = 8;
constexpr int64_t kCodes = 16;
constexpr int64_t kLevels = 3;

inline StackOptions stack_options() {
  return StackOptions(kDim).num_quantizers(kLevels).codebook_size(kCodes);
}

/// A stack whose codes have the size of the residuals.
inline ResidualVQ make_stack(const StackOptions& options, uint64_t seed = 0) {
  ResidualVQ stack(options);
  for (size_t index = 0; index < stack->levels.size(); ++index) {
    auto codebook = stack->levels[index]->codebook_state;
    if (codebook->initialised() && !(index > 0 && options.shared_codebook())) {
      auto codes =
          normal(codebook->embed.sizes(), seed + index) * std::pow(0.7, static_cast<double>(index));
      const auto norm = codes.norm(2, -1, true);
      codebook->set_codes(options.vq().use_cosine_sim() ? codes / norm : codes);
    }
  }
  return stack;
}

template <typename Configure>
StackOptions with(const Configure& configure) {
  auto options = stack_options();
  configure(options);
  return options;
}

/// Configurations that differ in their state or in how their levels are computed.
inline std::map<std::string, StackOptions> stack_configurations() {
  return {
      {"default", stack_options()},
      {"sizes", StackOptions(kDim).codebook_size({4, 16, 7})},
      {"projections", stack_options().codebook_dim(5)},
      {"heads",
       with([](auto& o) { o.heads(2).codebook_dim(3).vq().separate_codebook_per_head(true); })},
      {"shared", with([](auto& o) { o.shared_codebook(true).vq().threshold_ema_dead_code(2); })},
      {"shared_learnable", with([](auto& o) {
         o.shared_codebook(true).vq().learnable_codebook(true).ema_update(false);
       })},
      {"kmeans", with([](auto& o) { o.vq().kmeans_init(true).threshold_ema_dead_code(2); })},
      {"affine", with([](auto& o) { o.vq().affine_param(true); })},
      {"cosine", with([](auto& o) { o.vq().use_cosine_sim(true); })},
      {"image", with([](auto& o) { o.accept_image_fmap(true).codebook_dim(5); })},
      {"implicit", stack_options().implicit_neural_codebook(true)},
      {"implicit_shared", stack_options().implicit_neural_codebook(true).shared_codebook(true)},
      {"diveq", stack_options().diveq(true)},
      {"dropout", stack_options().quantize_dropout(true)},
      {"beam", stack_options().beam_size(3)},
  };
}

inline torch::Tensor input_for(const StackOptions& options, uint64_t seed) {
  return options.accept_image_fmap() ? normal({2, kDim, 5, 6}, seed) : normal({2, 30, kDim}, seed);
}

inline void train_stack(ResidualVQ& stack, int first, int last) {
  for (int step = first; step < last; ++step) {
    stack(input_for(stack->options, 100 + step)).loss.sum().backward();
    stack->zero_grad();
  }
}

inline State state_of(const torch::nn::Module& module) { return copy_of(state_dict(module)); }

}  // namespace torchvq::testing
