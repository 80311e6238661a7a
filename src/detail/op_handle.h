// Cached dispatcher handles, which are the whole body of each public operator function.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "detail/checks.h"

namespace torchvq::detail {

/// Calls an operator. An undefined tensor among the arguments is refused here, for all operators:
/// the dispatcher would choose a kernel by the other arguments, or none.
template <typename Signature>
class CheckedOperator;

template <typename Result, typename... Arguments>
class CheckedOperator<Result(Arguments...)> {
 public:
  explicit CheckedOperator(const c10::OperatorHandle& op) : op_(op.typed<Result(Arguments...)>()) {}

  Result call(Arguments... arguments) const {
    size_t number = 0;
    (check(arguments, number++), ...);
    return op_.call(std::forward<Arguments>(arguments)...);
  }

 private:
  void check(const at::Tensor& tensor, size_t number) const {
    if (tensor.defined()) return;
    const auto& schema = op_.schema();
    const auto name = schema.name().substr(schema.name().find("::") + 2);
    check_defined(name.c_str(), schema.arguments()[number].name().c_str(), tensor);
  }
  void check(const std::optional<at::Tensor>& tensor, size_t number) const {
    if (tensor) check(*tensor, number);
  }
  void check(at::TensorList tensors, size_t number) const {
    for (const auto& tensor : tensors) check(tensor, number);
  }
  void check(const std::optional<at::TensorList>& tensors, size_t number) const {
    if (tensors) check(*tensors, number);
  }
  template <typename Other>
  void check(const Other& /*argument*/, size_t /*number*/) const {}

  c10::TypedOperatorHandle<Result(Arguments...)> op_;
};

/// Looks an operator up once per call site and keeps its typed handle.
/// `Signature` is the C++ function type of the schema, for example `at::Tensor(const at::Tensor&)`.
template <typename Signature>
CheckedOperator<Signature> op_handle(const char* name) {
  return CheckedOperator<Signature>(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""));
}

}  // namespace torchvq::detail
