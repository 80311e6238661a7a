// Autograd kernel of operators without a gradient (statistics, state updates).
#pragma once

#include <initializer_list>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace torchvq::detail {

/// Boxed kernel for the Autograd key: runs the operator below autograd, so that no result requires
/// a gradient, and tells autograd which arguments were written, so that a backward that saved one
/// of them reports the change instead of using the new values.
void run_without_gradient(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack);

/// Tells autograd that a tensor was written.
void mark_written(const at::Tensor& tensor);

/// The same for the kernel of one operator with its own types, because boxing a list costs a
/// microsecond. `call` runs the operator again.
template <typename Call>
void without_gradient(std::initializer_list<at::TensorList> written, const Call& call) {
  {
    at::AutoDispatchBelowADInplaceOrView guard;
    call();
  }
  for (const auto& list : written) {
    for (const auto& tensor : list) mark_written(tensor);
  }
}

}  // namespace torchvq::detail
