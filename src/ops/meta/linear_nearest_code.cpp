#include "ops/linear_nearest_code.h"

#include <tuple>

#include <torch/library.h>

#include "ops/nearest_code.h"

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor> linear_nearest_code(const at::Tensor& x,
                                                       const at::Tensor& frozen,
                                                       const at::Tensor& weight,
                                                       const std::optional<at::Tensor>& bias) {
  detail::check_linear_nearest_code(x, frozen, weight, bias);
  const auto options = x.options().dtype(detail::value_dtype(x, frozen));
  return {x.new_empty_symint(x.sym_sizes(), options),
          x.new_empty_symint({x.sym_size(0), x.sym_size(1)}, options.dtype(at::kLong))};
}

std::tuple<at::Tensor, at::Tensor> linear_nearest_code_backward(const at::Tensor& grad,
                                                                const at::Tensor& absent,
                                                                const at::Tensor& indices,
                                                                const at::Tensor& frozen) {
  detail::check_linear_nearest_code_backward(grad, absent, indices, frozen);
  const auto dim = grad.sym_size(2);
  return {frozen.new_empty_symint({dim, frozen.sym_size(1)}), frozen.new_empty_symint({dim})};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("linear_nearest_code", linear_nearest_code);
  m.impl("linear_nearest_code_backward", linear_nearest_code_backward);
}

}  // namespace torchvq
