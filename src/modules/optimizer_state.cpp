#include "modules/optimizer_state.h"

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace torchvq::detail {
namespace {

namespace optim = torch::optim;
using State = std::map<std::string, at::Tensor>;

// The fields of each kind of state, by their Python names.

template <typename Visit>
void visit(optim::SGDParamState& state, const Visit& field) {
  field("momentum_buffer", state.momentum_buffer());
}

template <typename AdamState, typename Visit>
void visit_adam(AdamState& state, const Visit& field) {
  field("step", state.step());
  field("exp_avg", state.exp_avg());
  field("exp_avg_sq", state.exp_avg_sq());
  field("max_exp_avg_sq", state.max_exp_avg_sq());
}

template <typename Visit>
void visit(optim::AdamParamState& state, const Visit& field) {
  visit_adam(state, field);
}

template <typename Visit>
void visit(optim::AdamWParamState& state, const Visit& field) {
  visit_adam(state, field);
}

template <typename Visit>
void visit(optim::RMSpropParamState& state, const Visit& field) {
  field("step", state.step());
  field("square_avg", state.square_avg());
  field("momentum_buffer", state.momentum_buffer());
  field("grad_avg", state.grad_avg());
}

template <typename Visit>
void visit(optim::AdagradParamState& state, const Visit& field) {
  field("step", state.step());
  field("sum", state.sum());
}

/// Calls `use` with an empty state of the optimizer's type; returns false for an unknown type.
template <typename Use>
bool with_state_of(const optim::Optimizer& optimizer, const Use& use) {
  const auto is = [&]<typename Optimizer>(std::type_identity<Optimizer>) {
    return dynamic_cast<const Optimizer*>(&optimizer) != nullptr;
  };
  if (is(std::type_identity<optim::SGD>())) {
    use(optim::SGDParamState());
  } else if (is(std::type_identity<optim::Adam>())) {
    use(optim::AdamParamState());
  } else if (is(std::type_identity<optim::AdamW>())) {
    use(optim::AdamWParamState());
  } else if (is(std::type_identity<optim::RMSprop>())) {
    use(optim::RMSpropParamState());
  } else if (is(std::type_identity<optim::Adagrad>())) {
    use(optim::AdagradParamState());
  } else {
    return false;
  }
  return true;
}

std::vector<at::Tensor> parameters_of(const optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

void write(State& state, const std::string& name, int64_t count) {
  state[name] = at::scalar_tensor(static_cast<double>(count), at::kFloat);
}

void write(State& state, const std::string& name, const at::Tensor& value) {
  if (value.defined()) {
    state[name] = value.detach();
  }
}

void read(int64_t& field, const at::Tensor& value, const at::Tensor& /*parameter*/) {
  field = static_cast<int64_t>(value.item<double>());
}

void read(at::Tensor& field, const at::Tensor& value, const at::Tensor& parameter) {
  field = value.detach().to(parameter.device(), parameter.scalar_type(), /*non_blocking=*/false,
                            /*copy=*/true);
}

void follow(int64_t /*field*/, const at::Tensor& /*parameter*/) {}

void follow(at::Tensor& field, const at::Tensor& parameter) {
  if (field.defined()) field = field.to(parameter.device(), parameter.scalar_type());
}

void check_field(int64_t /*field*/, const std::string& name, const at::Tensor& value,
                 const at::Tensor& /*parameter*/) {
  constexpr double kMostSteps = 9007199254740992;  // 2^53: a double holds every smaller number
  TORCH_CHECK_VALUE(value.numel() == 1, "load_state_dict: expected ", name,
                    " to be a number, but got shape ", value.sizes());
  const auto steps = value.item<double>();
  TORCH_CHECK_VALUE(steps >= 0 && steps <= kMostSteps, "load_state_dict: expected ", name,
                    " to be a number of steps, 0 or more, but got ", steps);
}

void check_field(const at::Tensor& /*field*/, const std::string& name, const at::Tensor& value,
                 const at::Tensor& parameter) {
  TORCH_CHECK_VALUE(value.sizes() == parameter.sizes(), "load_state_dict: expected ", name,
                    " to have shape ", parameter.sizes(), ", but got ", value.sizes());
  TORCH_CHECK_VALUE(value.is_floating_point(), "load_state_dict: expected ", name,
                    " to be floating point, but got ", value.scalar_type());
}

/// Whether an optimizer with these options reads a field of its state.
bool reads_field(const std::string& name, const optim::OptimizerOptions& options) {
  if (const auto* adam = dynamic_cast<const optim::AdamOptions*>(&options)) {
    return name != "max_exp_avg_sq" || adam->amsgrad();
  }
  if (const auto* adamw = dynamic_cast<const optim::AdamWOptions*>(&options)) {
    return name != "max_exp_avg_sq" || adamw->amsgrad();
  }
  if (const auto* rmsprop = dynamic_cast<const optim::RMSpropOptions*>(&options)) {
    if (name == "momentum_buffer") return rmsprop->momentum() > 0;
    if (name == "grad_avg") return rmsprop->centered();
  }
  return true;
}

/// Removes the entries of parameter number `prefix` from `left`, after checking them. A parameter
/// may have none.
template <typename ParamState>
void check_parameter(ParamState fields, const std::string& prefix, const at::Tensor& parameter,
                     const optim::OptimizerOptions& options, State& left) {
  std::string present, missing;
  visit(fields, [&](const std::string& name, auto& field) {
    if (const auto value = left.find(prefix + name); value != left.end()) {
      check_field(field, value->first, value->second, parameter);
      present = value->first;
      left.erase(value);
    } else if (reads_field(name, options)) {
      missing = prefix + name;
    }
  });
  TORCH_CHECK_VALUE(present.empty() || missing.empty(),
                    "load_state_dict: expected the in-place optimizer's state to have ", missing,
                    " beside ", present, ", but got a state without it");
}

template <typename ParamState>
void load_parameter(ParamState fields, const std::string& prefix, const at::Tensor& parameter,
                    const State& state, optim::Optimizer& optimizer) {
  bool found = false;
  visit(fields, [&](const std::string& name, auto& field) {
    if (const auto value = state.find(prefix + name); value != state.end()) {
      read(field, value->second, parameter);
      found = true;
    }
  });
  void* const key = parameter.unsafeGetTensorImpl();
  if (found) {
    optimizer.state()[key] = std::make_unique<ParamState>(std::move(fields));
  } else if constexpr (!std::is_same_v<ParamState, optim::AdagradParamState>) {
    // Adagrad makes its state at construction, and takes no step without.
    optimizer.state().erase(key);
  }
}

}  // namespace

State optimizer_state(optim::Optimizer& optimizer) {
  State state;
  const auto parameters = parameters_of(optimizer);
  const bool known = with_state_of(optimizer, [&]<typename ParamState>(const ParamState&) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto found = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
      if (found != optimizer.state().end()) {
        visit(static_cast<ParamState&>(*found->second), [&](const std::string& name, auto& field) {
          write(state, std::to_string(i) + "." + name, field);
        });
      }
    }
  });
  if (!known) {
    TORCH_WARN_ONCE(
        "VectorQuantize: the in-place optimizer is none of torch::optim's SGD, Adam, AdamW, "
        "RMSprop and Adagrad; what it has accumulated is not part of copies and checkpoints");
  }
  return state;
}

void check_optimizer_state(optim::Optimizer& optimizer, const State& state) {
  auto left = state;
  with_state_of(optimizer, [&](const auto& fields) {
    size_t number = 0;
    for (const auto& group : optimizer.param_groups()) {
      for (const auto& parameter : group.params()) {
        check_parameter(fields, std::to_string(number++) + ".", parameter, group.options(), left);
      }
    }
  });
  TORCH_CHECK_VALUE(left.empty(),
                    "load_state_dict: expected the in-place optimizer's state to be of this "
                    "optimizer's type and parameters, but got ",
                    left.begin()->first);
}

void load_optimizer_state(optim::Optimizer& optimizer, const State& state) {
  check_optimizer_state(optimizer, state);
  const auto parameters = parameters_of(optimizer);
  with_state_of(optimizer, [&](const auto& fields) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      load_parameter(fields, std::to_string(i) + ".", parameters[i], state, optimizer);
    }
  });
}

void follow_parameters(optim::Optimizer& optimizer) {
  // Later steps write to the state outside of inference mode.
  const c10::InferenceMode no_inference(false);
  with_state_of(optimizer, [&]<typename ParamState>(const ParamState&) {
    for (const auto& parameter : parameters_of(optimizer)) {
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;
      visit(static_cast<ParamState&>(*found->second),
            [&](const std::string& /*name*/, auto& field) { follow(field, parameter); });
    }
  });
}

void copy_optimizer_options(const optim::Optimizer& from, optim::Optimizer& to) {
  const auto& groups = from.param_groups();
  auto& own = to.param_groups();
  TORCH_CHECK_VALUE(groups.size() == own.size(),
                    "clone: expected the in-place optimizer to have the ", own.size(),
                    " groups of parameters of construction, but got ", groups.size());
  // The options of a user's own optimizer need not have a copy.
  with_state_of(from, [&](const auto& /*state*/) {
    for (size_t i = 0; i < own.size(); ++i) own[i].set_options(groups[i].options().clone());
  });
}

}  // namespace torchvq::detail
