#include <torchvq/ops/sync_update_v.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SyncUpdateV : torch::autograd::Function<SyncUpdateV> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& quantized, double v) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->saved_data["gain"] = 1.0 + v;
    return ops::sync_update_v(quantized, v);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    return {grads[0] * ctx->saved_data["gain"].toDouble(), at::Tensor()};
  }
};

at::Tensor sync_update_v(const at::Tensor& quantized, double v) {
  return detail::differentiable<SyncUpdateV>(quantized, v);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("sync_update_v", sync_update_v); }

}  // namespace torchvq
