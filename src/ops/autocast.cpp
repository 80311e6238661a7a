// Autocast stops at this library's door, for every device type.
//
// Distances, statistics and losses are float32 whatever surrounds them (docs/dtype_policy.md).
// Operators here have kernels that call ATen; without this shield autocast would reach those calls
// and turn a matrix product of distances into bfloat16. Every operator gets one boxed kernel that
// switches autocast off and calls the operator again.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "ops/operators.h"

namespace {

void without_autocast(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/,
                      torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard guard(c10::autocast_dispatch_keyset);
  op.callBoxed(stack);
}

void shield(torch::Library& m) {
  for (const auto* name : torchvq::detail::kComputingOperators) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&without_autocast>());
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, AutocastCPU, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastCUDA, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastXPU, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastMPS, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastHPU, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastIPU, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastXLA, m) { shield(m); }
TORCH_LIBRARY_IMPL(torchvq, AutocastPrivateUse1, m) { shield(m); }
