#include <torchvq/ops/quantize_and_commit.h>

#include <string>
#include <tuple>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/ops/rotation_trick.h>

#include "detail/differentiable.h"
#include "detail/once_differentiable.h"
#include "detail/transposed.h"
#include "ops/autograd/commitment_gradients.h"
#include "ops/quantize_and_commit.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr auto kRotates = "rotates", kMasked = "masked", kZeros = "zeros_for_masked";

at::Tensor estimated(const at::Tensor& grad, const at::Tensor& rows, const at::Tensor& codes,
                     bool rotates) {
  const auto own =
      detail::contiguous_rows(grad).reshape_symint(rows.sym_sizes()).to(rows.scalar_type());
  if (!rotates) return own;
  detail::check_once_differentiable("rotation_trick");
  return ops::rotation_trick_backward(own, rows, codes);
}

struct QuantizeAndCommit : torch::autograd::Function<QuantizeAndCommit> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x,
                               const at::Tensor& codebook, std::string_view estimator,
                               const std::optional<at::Tensor>& mask, bool zeros_for_masked) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto [quantized, indices, codes, commitment] =
        ops::quantize_and_commit(x, codebook, estimator, mask, zeros_for_masked);
    // codes are an output of this leaf operator, so compilers save them and never recompute them.
    ctx->save_for_backward({x, codes, mask.value_or(at::Tensor())});
    ctx->saved_data[kZeros] = zeros_for_masked;
    ctx->set_materialize_grads(false);
    ctx->saved_data[kMasked] = mask.has_value();
    ctx->saved_data[kRotates] = estimator == "rotation_trick";
    variable_list constant{indices, codes};
    if (estimator == "none") constant.push_back(quantized);
    ctx->mark_non_differentiable(constant);
    return {quantized, indices, codes, commitment};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const bool rotates = ctx->saved_data.at(kRotates).toBool();
    const bool zeros = ctx->saved_data.at(kZeros).toBool();
    variable_list result(5);  // x, codebook, estimator, mask, zeros_for_masked
    auto& total = result[0];
    if (!rotates && !grads[3].defined() && !ctx->saved_data.at(kMasked).toBool()) {
      // Saved tensors are not needed here, so users may have written to them.
      total = grads[0];
      return result;
    }
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &codes = saved[1];
    const auto mask = saved[2].defined() ? std::optional(saved[2]) : std::nullopt;
    if (grads[0].defined() && grads[3].defined() && !at::GradMode::is_enabled()) {
      total = ops::quantize_and_commit_backward(grads[0], grads[3], x, codes, rotates, mask, zeros);
      return result;
    }
    const auto rows = detail::tokens_without_padding(x, mask);
    if (grads[0].defined()) {
      total = estimated(grads[0], rows, codes, rotates);
      if (mask && zeros) total = total.masked_fill(mask->logical_not().unsqueeze(-1), 0);
    }
    if (grads[3].defined()) {
      const auto own =
          std::get<0>(detail::commitment_gradients(grads[3], rows, codes, saved[2], false));
      total = total.defined() ? total + own : own;
    }
    if (total.defined()) total = total.to(x.scalar_type()).reshape_symint(x.sym_sizes());
    return result;
  }
};

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> quantize_and_commit(
    const at::Tensor& x, const at::Tensor& codebook, std::string_view estimator,
    const std::optional<at::Tensor>& mask, bool zeros_for_masked) {
  auto found =
      detail::differentiable<QuantizeAndCommit>(x, codebook, estimator, mask, zeros_for_masked);
  return {found[0], found[1], found[2], found[3]};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("quantize_and_commit", quantize_and_commit); }

}  // namespace torchvq
