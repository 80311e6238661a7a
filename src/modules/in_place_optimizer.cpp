#include <torchvq/modules/in_place_optimizer.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <typeinfo>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/variable.h>

#include "modules/optimizer_state.h"

namespace torchvq {

using State = std::map<std::string, at::Tensor>;

namespace {

constexpr auto kArchiveKey = "in_place_codebook_optimizer";

/// The rate at construction; none of options that do not tell it.
std::optional<double> rate_of(const torch::optim::Optimizer& optimizer) {
  try {
    return optimizer.defaults().get_lr();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

}  // namespace

bool InPlaceOptimizer::has_in_place_optimizer() const { return in_place_optimizer_ != nullptr; }

bool InPlaceOptimizer::learns_in_place() const {
  if (in_place_optimizer_ == nullptr) return false;
  const auto& groups = in_place_optimizer_->param_groups();
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    const auto& own = group.params();
    return std::any_of(own.begin(), own.end(), [](const auto& one) { return one.requires_grad(); });
  });
}

std::string InPlaceOptimizer::in_place_optimizer_text() const {
  if (!in_place_optimizer_) return "none";
  const auto& optimizer = *in_place_optimizer_;
  std::ostringstream text;
  text << c10::demangle(typeid(optimizer).name());
  if (const auto rate = rate_of(optimizer)) text << " of rate " << *rate;
  if (in_place_state_loaded_) text << " with loaded state";
  return text.str();
}

void InPlaceOptimizer::update_in_place_optimizer() {
  if (!in_place_optimizer_) return;
  detail::follow_parameters(*in_place_optimizer_);
  in_place_optimizer_->step();
  in_place_optimizer_->zero_grad();
  // The optimizers of LibTorch write past the version counters, so a graph that holds the values
  // before the step would take those after it, where that of Python raises.
  for (const auto& group : in_place_optimizer_->param_groups()) {
    for (const auto& parameter : group.params()) torch::autograd::impl::bump_version(parameter);
  }
}

State InPlaceOptimizer::in_place_optimizer_state() const {
  if (!in_place_optimizer_) return {};
  detail::follow_parameters(*in_place_optimizer_);
  return detail::optimizer_state(*in_place_optimizer_);
}

void InPlaceOptimizer::check_in_place_optimizer_state(const State& state) const {
  TORCH_CHECK_VALUE(in_place_optimizer_ || state.empty(),
                    "load_state_dict: expected no state of an in-place optimizer, because the "
                    "module has none, but got ",
                    state.begin()->first);
  if (in_place_optimizer_) {
    detail::check_optimizer_state(*in_place_optimizer_, state);
  }
}

void InPlaceOptimizer::load_in_place_optimizer_state(const State& state) {
  check_in_place_optimizer_state(state);
  if (in_place_optimizer_) {
    // Later steps write to the state outside of inference mode.
    const c10::InferenceMode no_inference(false);
    detail::load_optimizer_state(*in_place_optimizer_, state);
    in_place_state_loaded_ = !state.empty();
  }
}

void InPlaceOptimizer::set_in_place_optimizer(const char* owner,
                                              std::shared_ptr<torch::optim::Optimizer> made) {
  TORCH_CHECK_VALUE(made, owner,
                    ": expected in_place_codebook_optimizer to return an optimizer, but got none");
  in_place_optimizer_ = std::move(made);
}

void InPlaceOptimizer::copy_in_place_optimizer(const InPlaceOptimizer& other) {
  if (in_place_optimizer_ && other.in_place_optimizer_) {
    detail::copy_optimizer_options(*other.in_place_optimizer_, *in_place_optimizer_);
  }
  load_in_place_optimizer_state(other.in_place_optimizer_state());
}

void InPlaceOptimizer::save_in_place_optimizer(torch::serialize::OutputArchive& archive) const {
  if (!in_place_optimizer_) {
    return;
  }
  torch::serialize::OutputArchive own(archive.compilation_unit());
  for (const auto& [name, value] : in_place_optimizer_state()) {
    own.write(name, value, /*is_buffer=*/true);
  }
  archive.write(kArchiveKey, own);
}

State InPlaceOptimizer::read_in_place_optimizer(torch::serialize::InputArchive& archive) const {
  State state;
  torch::serialize::InputArchive own;
  if (in_place_optimizer_ && archive.try_read(kArchiveKey, own)) {
    for (const auto& name : own.keys()) {
      own.read(name, state[name], /*is_buffer=*/true);
    }
    check_in_place_optimizer_state(state);
  }
  return state;
}

}  // namespace torchvq
