#include <torchvq/ops/residual_decode.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/add_rows.h"
#include "detail/differentiable.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::string key(const char* what, size_t level) { return what + std::to_string(level); }

/// Sums rows (H, T, D) by their `indices` (H, T) into a codebook of `shape`; if heads share the
/// codebook, their tokens are treated as those of one head.
at::Tensor codebook_grad(const at::Tensor& rows, const at::Tensor& indices,
                         c10::SymIntArrayRef shape) {
  const auto& size = shape[shape.size() - 2];
  if (shape.size() == 3 && shape[0] == rows.sym_size(0)) {
    return detail::add_rows(rows, indices, size);
  }
  return detail::add_rows(rows.flatten(0, 1).unsqueeze(0), indices.flatten().unsqueeze(0), size)
      .view_symint(shape);
}

struct ResidualDecode : torch::autograd::Function<ResidualDecode> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& indices,
                            at::TensorList codebooks) {
    at::AutoDispatchBelowADInplaceOrView guard;
    // Backward needs only the codebooks' shapes, so a later in-place update is harmless; and users
    // may write to their indices.
    ctx->save_for_backward({indices.clone()});
    for (size_t n = 0; n < codebooks.size(); ++n) {
      ctx->saved_data[key("shape", n)] = codebooks[n].sym_sizes();
      ctx->saved_data[key("dtype", n)] = codebooks[n].scalar_type();
    }
    return ops::residual_decode(indices, codebooks);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto indices = ctx->get_saved_variables()[0];
    const auto dtype = grads[0].scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const auto grad = grads[0].to(dtype);
    const auto levels = static_cast<size_t>(indices.size(2));
    variable_list result(1 + levels);
    for (size_t n = 0; n < levels; ++n) {
      if (!ctx->needs_input_grad(1 + n)) continue;
      const auto level = indices.select(2, static_cast<int64_t>(n));
      const auto absent = level.eq(-1);
      const auto shape = ctx->saved_data[key("shape", n)].toSymIntVector();
      const auto rows = grad.masked_fill(absent.unsqueeze(-1), 0);
      result[1 + n] = codebook_grad(rows, level.masked_fill(absent, 0), shape)
                          .to(ctx->saved_data[key("dtype", n)].toScalarType());
    }
    return result;
  }
};

at::Tensor residual_decode(const at::Tensor& indices, at::TensorList codebooks) {
  return detail::differentiable<ResidualDecode>(indices, codebooks);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("residual_decode", residual_decode); }

}  // namespace torchvq
