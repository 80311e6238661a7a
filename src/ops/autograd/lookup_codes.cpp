#include <torchvq/ops/lookup_codes.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/add_rows.h"
#include "detail/differentiable.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LookupCodes : torch::autograd::Function<LookupCodes> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& codebook,
                            const at::Tensor& indices) {
    at::AutoDispatchBelowADInplaceOrView guard;
    // If codes receive no gradient, neither does the codebook, rather than zeros.
    ctx->set_materialize_grads(false);
    // Backward needs only the codebook's shape, so a later in-place update is harmless; and users may
    // write to their indices.
    ctx->save_for_backward({indices.clone()});
    auto codes = ops::lookup_codes(codebook, indices);  // checks first that there is an axis 1
    ctx->saved_data["codebook_size"] = codebook.sym_size(1);
    return codes;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto& grad = grads[0];
    if (!grad.defined()) return {at::Tensor(), at::Tensor()};
    const auto indices = ctx->get_saved_variables()[0];
    const auto size = ctx->saved_data["codebook_size"].toSymInt();
    const auto absent = indices.eq(-1);
    const auto rows = grad.masked_fill(absent.unsqueeze(-1), 0);
    return {detail::add_rows(rows, indices.masked_fill(absent, 0), size), at::Tensor()};
  }
};

at::Tensor lookup_codes(const at::Tensor& codebook, const at::Tensor& indices) {
  return detail::differentiable<LookupCodes>(codebook, indices);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("lookup_codes", lookup_codes); }

}  // namespace torchvq
