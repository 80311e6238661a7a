#include "detail/readable.h"

#include <ATen/SavedTensorHooks.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torchvq::detail {
namespace {

using c10::DispatchKey;

/// What a dense CPU tensor may have. Subclasses, batches, conjugates and others have more.
const c10::DispatchKeySet kDenseOnCpu =
    c10::DispatchKeySet({DispatchKey::CPU, DispatchKey::AutogradCPU, DispatchKey::ADInplaceOrView,
                         DispatchKey::AutocastCPU});

/// Modes that see every operator: tracing, compilers, transforms.
const c10::DispatchKeySet kModes =
    c10::DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot,
                         DispatchKey::Functionalize, DispatchKey::FuncTorchDynamicLayerFrontMode,
                         DispatchKey::FuncTorchDynamicLayerBackMode, DispatchKey::FuncTorchVmapMode,
                         DispatchKey::VmapMode, DispatchKey::Tracer, DispatchKey::PreDispatch});

}  // namespace

bool is_readable(const at::Tensor& tensor) {
  return (tensor.key_set() | kDenseOnCpu) == kDenseOnCpu && tensor.has_storage() &&
         (c10::impl::tls_local_dispatch_key_set().included_ & kModes).empty();
}

bool may_shorten_graph(const at::Tensor& tensor) {
  return is_readable(tensor) && !at::SavedTensorDefaultHooks::get_hooks();
}

bool needs_gradient(const at::Tensor& tensor) {
  if (tensor.requires_grad()) return c10::GradMode::is_enabled();
  return tensor._fw_grad(/*level=*/0).defined();
}

}  // namespace torchvq::detail
