#include <torchvq/functional/linear_quantize.h>

#include <string_view>
#include <tuple>

#include <torch/library.h>

#include <torchvq/functional/estimate.h>
#include <torchvq/ops/linear_nearest_code.h>

#include "detail/checks.h"
#include "detail/token_checks.h"
#include "ops/unit_vectors.h"

namespace torchvq::functional {

QuantizeOutput linear_quantize(const at::Tensor& x, const at::Tensor& frozen,
                               const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                               const std::optional<at::Tensor>& mask,
                               const std::string& estimator) {
  detail::check_floating("linear_quantize", "x", x);
  const auto inputs = x.to(detail::compute_dtype(x));
  auto [codes, indices] = ops::linear_nearest_code(inputs, frozen, weight, bias);
  const auto quantized =
      estimate(inputs, codes, /*rng=*/{}, EstimateOptions().estimator(estimator));
  detail::check_mask("linear_quantize", mask, x);
  if (mask) indices = indices.masked_fill(mask->logical_not(), -1);
  return {quantized, indices, codes, inputs};
}

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> linear_quantize_op(
    const at::Tensor& x, const at::Tensor& frozen, const at::Tensor& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& mask,
    std::string_view estimator) {
  TORCH_CHECK_VALUE(estimator != "directional_reparam",
                    "linear_quantize: expected estimator to be one that draws nothing, but got ",
                    estimator);
  auto found = linear_quantize(x, frozen, weight, bias, mask, std::string(estimator));
  return {found.quantized, found.indices, found.codes, found.inputs};
}

}  // namespace

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "linear_quantize(Tensor x, Tensor frozen, Tensor weight, Tensor? bias=None, *, "
      "Tensor? mask=None, str estimator='straight_through') "
      "-> (Tensor quantized, Tensor indices, Tensor codes, Tensor inputs)",
      torchvq::functional::linear_quantize_op);
}
