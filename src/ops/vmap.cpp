// torch.vmap: every operator runs once per slice.
//
// PyTorch's own fallback loop warns at each operator and rejects lists of tensors, which operators
// of residual stacks take.
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/functorch/DynamicLayer.h>
#include <ATen/functorch/PlumbingHelper.h>
#include <ATen/ops/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "ops/operators.h"

namespace torchvq {
namespace {

namespace functorch = at::functorch;

/// The operator's name, with which messages begin.
std::string name_of(const c10::FunctionSchema& schema) {
  return schema.name().substr(schema.name().find("::") + 2);
}

/// A tensor argument without its mapped axis.
struct Mapped {
  at::Tensor tensor;
  std::optional<int64_t> axis;  ///< none: shared by all slices

  at::Tensor slice(int64_t index) const { return axis ? tensor.select(*axis, index) : tensor; }
};

/// The arguments of a call: `values[i]` if argument i holds tensors, otherwise the argument itself.
class Arguments {
 public:
  Arguments(const c10::FunctionSchema& schema, const torch::jit::Stack& stack, int64_t level)
      : schema_(schema), given_(torch::jit::last(stack, schema.arguments().size()).vec()) {
    for (size_t i = 0; i < given_.size(); ++i) values_.push_back(unwrap(i, level));
  }

  /// None if no argument is mapped at this level, which happens in a vmap inside of another.
  const std::optional<int64_t>& slices() const { return slices_; }

  /// Throws unless the operator can run slice by slice.
  void check() const {
    TORCH_CHECK(written_by_all_.empty(), name_of(schema_), ": expected ", written_by_all_,
                " to be mapped by vmap, because it is written to, but got the same tensor for all");
    TORCH_CHECK_VALUE(slices_.value_or(0) > 0, name_of(schema_),
                      ": expected the axis that vmap maps to have elements, but got none");
  }

  torch::jit::Stack slice(int64_t index) const {
    torch::jit::Stack stack;
    for (size_t i = 0; i < given_.size(); ++i) {
      const auto& values = values_[i];
      if (given_[i].isTensorList()) {
        c10::List<at::Tensor> list;
        for (const auto& value : values) list.push_back(value.slice(index));
        stack.emplace_back(std::move(list));
      } else {
        stack.push_back(values.empty() ? given_[i] : c10::IValue(values[0].slice(index)));
      }
    }
    return stack;
  }

 private:
  std::vector<Mapped> unwrap(size_t i, int64_t level) {
    std::vector<at::Tensor> tensors;
    if (given_[i].isTensorList()) {
      tensors = given_[i].toTensorVector();
    } else if (given_[i].isTensor() && given_[i].toTensor().defined()) {
      tensors = {given_[i].toTensor()};
    }
    const auto& argument = schema_.arguments()[i];
    const bool written = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    std::vector<Mapped> found;
    for (const auto& tensor : tensors) {
      auto [value, axis] = functorch::unwrapTensorAtLevel(tensor, level);
      if (axis) slices_ = value.size(*axis);
      if (!axis && written && written_by_all_.empty()) written_by_all_ = argument.name();
      found.push_back({std::move(value), axis});
    }
    return found;
  }

  const c10::FunctionSchema& schema_;
  std::vector<c10::IValue> given_;
  std::vector<std::vector<Mapped>> values_;
  std::optional<int64_t> slices_;
  std::string written_by_all_;  ///< the first written argument that is not mapped, if any
};

at::Tensor joined(const std::vector<at::Tensor>& slices, int64_t level) {
  return slices[0].defined() ? functorch::makeBatched(at::stack(slices), 0, level) : at::Tensor();
}

/// Stacks result `number` of all slices.
c10::IValue joined(const std::vector<torch::jit::Stack>& results, size_t number, int64_t level) {
  std::vector<at::Tensor> slices;
  if (results[0][number].isTensor()) {
    for (const auto& result : results) slices.push_back(result[number].toTensor());
    return joined(slices, level);
  }
  c10::List<at::Tensor> list;
  for (size_t i = 0; i < results[0][number].toTensorVector().size(); ++i) {
    slices.clear();
    for (const auto& result : results) slices.push_back(result[number].toTensorVector()[i]);
    list.push_back(joined(slices, level));
  }
  return list;
}

void map_slices(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::DispatchKey::FuncTorchBatched);
  const auto& schema = op.schema();
  // The dispatcher calls this only inside vmap.
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access)
  const int64_t level = functorch::maybeCurrentDynamicLayer()->layerId();
  const Arguments arguments(schema, *stack, level);
  const auto slices = arguments.slices();
  if (!slices) {
    op.callBoxed(*stack);
    return;
  }
  arguments.check();
  std::vector<torch::jit::Stack> results;
  for (int64_t index = 0; index < *slices; ++index) {
    results.push_back(arguments.slice(index));
    op.callBoxed(results.back());
  }
  torch::jit::drop(*stack, schema.arguments().size());
  for (size_t number = 0; number < schema.returns().size(); ++number) {
    stack->push_back(joined(results, number, level));
  }
}

template <size_t count>
void map(torch::Library& m, const char* const (&names)[count]) {
  for (const auto* name : names) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&map_slices>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, FuncTorchBatched, m) {
  map(m, detail::kComputingOperators);
  map(m, detail::kOtherOperators);
}

}  // namespace torchvq
