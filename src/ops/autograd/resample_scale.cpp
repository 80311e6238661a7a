#include "ops/resample_scale.h"

#include <string>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/ops/resample_scale.h>

#include "detail/differentiable.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A linear map, so its gradient is the transpose, whatever the derivative.
struct ResampleScale : torch::autograd::Function<ResampleScale> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, at::IntArrayRef size,
                            c10::SymIntArrayRef full, std::string_view direction,
                            at::IntArrayRef kernel) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->saved_data["size"] = size;
    ctx->saved_data["full"] = full;
    ctx->saved_data["direction"] = std::string(direction);
    ctx->saved_data["kernel"] = kernel;
    return ops::resample_scale(input, size, full, direction, kernel);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto direction = ctx->saved_data["direction"].toStringRef();
    const auto grad = ops::resample_scale(
        grads[0], ctx->saved_data["size"].toIntVector(), ctx->saved_data["full"].toSymIntVector(),
        detail::transposed(direction), ctx->saved_data["kernel"].toIntVector());
    return {grad, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor resample_scale(const at::Tensor& input, at::IntArrayRef size, c10::SymIntArrayRef full,
                          std::string_view direction, at::IntArrayRef kernel) {
  return detail::differentiable<ResampleScale>(input, size, full, direction, kernel);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("resample_scale", resample_scale); }

}  // namespace torchvq
