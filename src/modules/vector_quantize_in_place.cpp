// The codebook's own optimizer: its step inside a training forward, and its part of the checkpoint.
#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

#include <torchvq/functional/quantize.h>
#include <torchvq/ops/commitment_loss.h>

#include "modules/optimizer_state.h"
#include "modules/vector_quantize_call.h"

namespace torchvq {

namespace F = functional;
using State = std::map<std::string, torch::Tensor>;

namespace {

constexpr auto kArchiveKey = "in_place_codebook_optimizer";

}  // namespace

torch::Tensor VectorQuantizeImpl::in_place_step(const torch::Tensor& projected,
                                                const torch::Tensor& codes,
                                                const std::optional<torch::Tensor>& mask) {
  at::AutoGradMode enable_grad(true);
  const auto chosen =
      F::quantize(projected.detach(), codes, codebook_state->rng, std::nullopt,
                  F::QuantizeOptions().metric(codebook_state->metric()).estimator("none"));
  const auto loss = ops::commitment_loss(chosen.inputs, chosen.codes, mask);
  loss.backward();
  if (!options.manual_in_place_optimizer_update()) {
    update_in_place_optimizer();
  }
  return loss.detach();
}

void VectorQuantizeImpl::update_in_place_optimizer() {
  if (in_place_optimizer_) {
    in_place_optimizer_->step();
    in_place_optimizer_->zero_grad();
  }
}

// Checkpoints
// -------------------------------------------------------------------------------------------------

bool VectorQuantizeImpl::has_in_place_optimizer() const { return in_place_optimizer_ != nullptr; }

State VectorQuantizeImpl::in_place_optimizer_state() const {
  return in_place_optimizer_ ? detail::optimizer_state(*in_place_optimizer_) : State();
}

void VectorQuantizeImpl::check_in_place_optimizer_state(const State& state) const {
  TORCH_CHECK_VALUE(in_place_optimizer_ || state.empty(),
                    "load_state_dict: expected no state of an in-place optimizer, because the "
                    "module has none, but got ",
                    state.begin()->first);
  if (in_place_optimizer_) {
    detail::check_optimizer_state(*in_place_optimizer_, state);
  }
}

void VectorQuantizeImpl::load_in_place_optimizer_state(const State& state) {
  check_in_place_optimizer_state(state);
  if (in_place_optimizer_) {
    detail::load_optimizer_state(*in_place_optimizer_, state);
  }
}

void VectorQuantizeImpl::save(torch::serialize::OutputArchive& archive) const {
  torch::nn::Module::save(archive);
  if (!in_place_optimizer_) {
    return;
  }
  torch::serialize::OutputArchive own(archive.compilation_unit());
  for (const auto& [name, value] : in_place_optimizer_state()) {
    own.write(name, value, /*is_buffer=*/true);
  }
  archive.write(kArchiveKey, own);
}

void VectorQuantizeImpl::load(torch::serialize::InputArchive& archive) {
  State state;
  torch::serialize::InputArchive own;
  if (in_place_optimizer_ && archive.try_read(kArchiveKey, own)) {
    for (const auto& name : own.keys()) {
      own.read(name, state[name], /*is_buffer=*/true);
    }
    check_in_place_optimizer_state(state);
  }
  torch::nn::Module::load(archive);
  load_in_place_optimizer_state(state);
}

}  // namespace torchvq
