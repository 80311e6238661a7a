// CPU: both gradients in one pass over the tokens.
#include "ops/quantize_and_commit.h"

#include <optional>

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/transposed.h"
#include "kernels/cpu/commitment_loss.h"
#include "ops/cpu/mean_squared_difference.h"
#include "ops/cpu/token_gradients.h"

namespace torchvq {
namespace {

struct Padding {
  const bool* mask;  ///< null: none
  bool passes;
};

template <typename T>
void write_gradients(const at::Tensor& grad, const at::Tensor& grad_commitment, const at::Tensor& x,
                     const at::Tensor& codes, bool rotates, const Padding& padding,
                     at::Tensor& grad_x) {
  const detail::TokenRows<T> rows{grad.const_data_ptr<T>(),
                                  x.const_data_ptr<T>(),
                                  codes.const_data_ptr<T>(),
                                  codes.size(1),
                                  codes.size(2),
                                  padding.mask,
                                  padding.passes};
  const int64_t count = detail::count_tokens(padding.mask, rows.rows) * rows.dim;
  const T scale = kernels::commitment_scale(*grad_commitment.const_data_ptr<T>(), count,
                                            /*masked=*/padding.mask != nullptr);
  detail::write_token_gradients<T>(rows, rotates, &scale, grad_x.mutable_data_ptr<T>());
}

at::Tensor quantize_and_commit_backward(const at::Tensor& grad_quantized,
                                        const at::Tensor& grad_commitment, const at::Tensor& x,
                                        const at::Tensor& codes_, bool rotates,
                                        const std::optional<at::Tensor>& mask_,
                                        bool zeros_for_masked) {
  detail::check_quantize_and_commit_backward(grad_quantized, grad_commitment, x, codes_, mask_);
  const auto dtype = codes_.scalar_type();
  const auto rows = [&](const at::Tensor& tensor) {
    return detail::contiguous_rows(tensor).to(dtype);
  };
  const auto grad = rows(grad_quantized), tokens = rows(x), codes = codes_.contiguous();
  const auto mask = mask_ ? mask_->contiguous() : at::Tensor();
  const Padding padding{mask.defined() ? mask.const_data_ptr<bool>() : nullptr, !zeros_for_masked};
  auto grad_x = at::empty(x.sizes(), codes.options());
  if (dtype == at::kDouble) {
    write_gradients<double>(grad, grad_commitment, tokens, codes, rotates, padding, grad_x);
  } else {
    write_gradients<float>(grad, grad_commitment, tokens, codes, rotates, padding, grad_x);
  }
  return grad_x.to(x.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("quantize_and_commit_backward", quantize_and_commit_backward);
}

}  // namespace torchvq
