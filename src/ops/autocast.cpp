// Disables autocast inside this library's operators, for every device type.
//
// Distances, statistics and losses are float32 regardless of autocast (docs/dtype_policy.md). The
// kernels of the operators call ATen; autocast would reach those calls and compute, for example,
// the matrix product of distances in bfloat16. Every operator therefore gets a boxed kernel that
// disables autocast and calls the operator again.
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
