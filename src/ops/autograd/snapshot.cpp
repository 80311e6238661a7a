#include <torchvq/ops/snapshot.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Snapshot : torch::autograd::Function<Snapshot> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& codebook) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return ops::snapshot(codebook);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0]};
  }
};

at::Tensor snapshot(const at::Tensor& codebook) {
  return detail::differentiable<Snapshot>(codebook);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("snapshot", snapshot); }

}  // namespace torchvq
