// Autograd kernel of operators without a gradient (statistics, state updates).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace torchvq::detail {

/// Boxed kernel for the Autograd key: runs the operator below autograd, so that no result requires
/// a gradient, and tells autograd which arguments were written, so that a backward that saved one
/// of them reports the change instead of using the new values.
void run_without_gradient(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                          torch::jit::Stack* stack);

}  // namespace torchvq::detail
