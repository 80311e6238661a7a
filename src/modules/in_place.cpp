#include "modules/in_place.h"

#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>

#include <torchvq/functional/average_gradients.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/ops/commitment_loss.h>

namespace torchvq::detail {

namespace F = functional;

namespace {

/// The gradients of these parameters, to return to; backward adds to a gradient in place.
class GradientsBefore {
 public:
  explicit GradientsBefore(const std::vector<at::Tensor>& learned) : learned_(learned) {
    const at::NoGradGuard no_grad;
    for (const auto& parameter : learned) {
      const auto& gradient = parameter.grad();
      gradients_.push_back(gradient.defined() ? gradient.clone() : gradient);
    }
  }

  void restore() const {
    for (size_t i = 0; i < learned_.size(); ++i) learned_[i].mutable_grad() = gradients_[i];
  }

 private:
  std::vector<at::Tensor> learned_, gradients_;
};

/// Returns whether any rank has a token; if not, the optimizer must not step: with moments or decay
/// it would move codes by gradients of zero, too. Turns the gradients of `learned`, of a mean over
/// this rank's tokens (H, T, D), into those of the mean over the tokens of all ranks.
bool average_gradients_(const std::vector<at::Tensor>& learned, const at::Tensor& tokens,
                        const std::optional<at::Tensor>& mask, const distributed::Ranks& ranks) {
  // What sizes tell needs no value of a tensor, for which a GPU would have to wait.
  const bool certain = !mask && tokens.size(0) * tokens.size(1) > 0;
  if (ranks.alone()) return certain || (mask && mask->any().item<bool>());
  std::vector<at::Tensor> parameters, gradients;
  for (const auto& parameter : learned) {
    if (parameter.grad().defined()) {
      parameters.push_back(parameter);
      gradients.push_back(parameter.grad());
    }
  }
  // The mean of ones over the tokens of all ranks is 1, or 0 if there is none.
  gradients.push_back(at::ones({}, tokens.options()));
  const auto averages = F::average_gradients(gradients, tokens, mask, ranks);
  if (!certain && averages.back().item<double>() == 0) return false;
  for (size_t index = 0; index < parameters.size(); ++index) {
    parameters[index].mutable_grad() = averages[index];
  }
  return true;
}

}  // namespace

void step_own_optimizer(InPlaceOptimizer& owner, bool manual,
                        const std::vector<at::Tensor>& learned,
                        const std::function<at::Tensor()>& backward,
                        const std::optional<at::Tensor>& mask, const distributed::Ranks& ranks) {
  const GradientsBefore before(learned);
  try {
    const auto tokens = backward();
    if (!average_gradients_(learned, tokens, mask, ranks)) {
      before.restore();
    } else if (!manual) {
      owner.update_in_place_optimizer();
    }
  } catch (...) {
    before.restore();  // repeated, the step would take its own gradient twice
    throw;
  }
}

at::Tensor target_of(const at::Tensor& tokens) {
  return tokens.is_inference() ? tokens.clone() : tokens.detach();
}

std::optional<at::Tensor> target_of(const std::optional<at::Tensor>& mask) {
  return mask ? std::optional(target_of(*mask)) : std::nullopt;
}

InPlaceStep in_place_step(VectorQuantizeImpl& vq, const at::Tensor& projected,
                          const at::Tensor& codebook, const std::optional<at::Tensor>& mask,
                          const Request& request, bool learns) {
  const c10::InferenceMode no_inference(false);
  at::AutoGradMode enable_grad(true);
  auto& state = *vq.codebook_state;
  const auto own_mask = target_of(mask);
  F::QuantizeOutput found;
  at::Tensor loss;
  const auto backward = [&] {
    const auto target = target_of(projected);
    found = F::quantize(target, codebook, state.rng, std::nullopt,
                        F::QuantizeOptions().metric(state.metric()).estimator("none"));
    loss = ops::commitment_loss(found.inputs, found.codes, own_mask);
    loss.backward();
    return target;
  };
  step_own_optimizer(vq, vq.options.manual_in_place_optimizer_update(), state.learned_parameters(),
                     backward, mask, request.ranks);
  InPlaceStep own{loss.detach(), {}};
  if (learns) {
    const at::NoGradGuard no_grad;
    // The count that the step began with may be a tensor of inference mode.
    state.reset_replaced();
    own.counts = state.learn(found.inputs, found.indices, own_mask, request.ema_update,
                             request.accumulate, request.weight, request.ranks);
  }
  return own;
}

}  // namespace torchvq::detail
