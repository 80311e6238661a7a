// Cached dispatcher handles, which are the whole body of each public operator function.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace torchvq::detail {

/// Looks an operator up once per call site and keeps its typed handle.
/// `Signature` is the C++ function type of the schema, for example `at::Tensor(const at::Tensor&)`.
template <typename Signature>
c10::TypedOperatorHandle<Signature> op_handle(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace torchvq::detail
