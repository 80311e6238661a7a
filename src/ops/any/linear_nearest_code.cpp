// Any device: a matrix product, and the search of its result.
#include "ops/linear_nearest_code.h"

#include <tuple>

#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/library.h>

#include <torchvq/ops/nearest_code.h>

#include "detail/add_rows.h"

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor> linear_nearest_code(const at::Tensor& x,
                                                       const at::Tensor& frozen,
                                                       const at::Tensor& weight,
                                                       const std::optional<at::Tensor>& bias) {
  detail::check_linear_nearest_code(x, frozen, weight, bias);
  const auto codebook = at::linear(frozen, weight, bias).unsqueeze(0);
  const auto found = ops::nearest_code(x, codebook, ops::NearestCodeOptions().return_codes(true));
  return {found.codes, found.indices};
}

std::tuple<at::Tensor, at::Tensor> linear_nearest_code_backward(const at::Tensor& grad,
                                                                const at::Tensor& absent,
                                                                const at::Tensor& indices,
                                                                const at::Tensor& frozen) {
  detail::check_linear_nearest_code_backward(grad, absent, indices, frozen);
  const auto rows = detail::gradient_rows(grad, absent, frozen);
  const auto size = frozen.size(0);
  // Codes that no token has chosen contribute nothing to the product.
  const auto weight = rows.size(0) < size
                          ? rows.t().mm(frozen.index_select(0, indices[0]))
                          : detail::add_rows(rows.unsqueeze(0), indices, size)[0].t().mm(frozen);
  return {weight, rows.sum(0)};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("linear_nearest_code", linear_nearest_code);
  m.impl("linear_nearest_code_backward", linear_nearest_code_backward);
}

}  // namespace torchvq
