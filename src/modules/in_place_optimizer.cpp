#include <torchvq/modules/in_place_optimizer.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <typeinfo>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "modules/optimizer_state.h"
#include "options/text.h"

namespace torchvq {

using State = std::map<std::string, at::Tensor>;

namespace {

namespace optim = torch::optim;
using detail::option_text;

constexpr auto kArchiveKey = "in_place_codebook_optimizer";

/// The rate at construction; none of options that do not tell it.
std::optional<double> rate_of(const torch::optim::Optimizer& optimizer) {
  try {
    return optimizer.defaults().get_lr();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

// The options of construction besides the rate, by their Python names.

std::string options_text(const optim::SGDOptions& options) {
  return ", momentum " + option_text(options.momentum()) + ", dampening " +
         option_text(options.dampening()) + ", nesterov " + option_text(options.nesterov());
}

template <typename AdamOptions>
std::string adam_text(const AdamOptions& options) {
  const auto& [first, second] = options.betas();
  return ", betas " + option_text(first) + " and " + option_text(second) + ", eps " +
         option_text(options.eps()) + ", amsgrad " + option_text(options.amsgrad());
}

std::string options_text(const optim::AdamOptions& options) { return adam_text(options); }
std::string options_text(const optim::AdamWOptions& options) { return adam_text(options); }

std::string options_text(const optim::RMSpropOptions& options) {
  return ", alpha " + option_text(options.alpha()) + ", eps " + option_text(options.eps()) +
         ", momentum " + option_text(options.momentum()) + ", centered " +
         option_text(options.centered());
}

std::string options_text(const optim::AdagradOptions& options) {
  return ", lr_decay " + option_text(options.lr_decay()) + ", initial_accumulator_value " +
         option_text(options.initial_accumulator_value()) + ", eps " + option_text(options.eps());
}

/// The text of options of this type; "" for others.
template <typename Options>
std::string text_if(const optim::OptimizerOptions& all) {
  const auto* const options = dynamic_cast<const Options*>(&all);
  if (options == nullptr) return "";
  return options_text(*options) + ", weight_decay " + option_text(options->weight_decay());
}

/// "" for optimizers that are none of torch::optim.
std::string other_options(const optim::Optimizer& optimizer) {
  const auto& all = optimizer.defaults();
  return text_if<optim::SGDOptions>(all) + text_if<optim::AdamOptions>(all) +
         text_if<optim::AdamWOptions>(all) + text_if<optim::RMSpropOptions>(all) +
         text_if<optim::AdagradOptions>(all);
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
  if (const auto rate = rate_of(optimizer)) text << " of rate " << option_text(*rate);
  if (in_place_state_loaded_) text << " with loaded state";
  return text.str() + other_options(optimizer);
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
