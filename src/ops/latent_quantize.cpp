#include "ops/latent_quantize.h"

#include <numeric>

#include <torch/library.h>

#include <torchvq/ops/latent_quantize.h>

#include "detail/op_handle.h"
#include "detail/scalar_levels.h"
#include "detail/token_checks.h"

namespace torchvq {

namespace detail {

void check_latent_quantize(const at::Tensor& x, const at::Tensor& values, at::IntArrayRef levels,
                           double commitment, double quantization,
                           const std::optional<at::Tensor>& mask) {
  constexpr auto op = "latent_quantize";
  check_floating(op, "x", x);
  check_floating(op, "values", values);
  check_scalar_levels(op, levels, 2);
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == static_cast<int64_t>(levels.size()), op,
                    ": expected x to have ", levels.size(),
                    " features, one per number of levels, but got shape ", x.sym_sizes());
  TORCH_CHECK_VALUE(values.dim() == 1 && values.sym_size(0) == count_values(levels), op,
                    ": expected values to have shape [", count_values(levels),
                    "], the sum of levels, but got ", values.sym_sizes());
  check_same_device(op, "x", x, "values", values);
  check_non_negative(op, "commitment", commitment);
  check_non_negative(op, "quantization", quantization);
  if (!mask) return;
  check_dtype(op, "mask", *mask, at::kBool);
  const auto tokens = x.sym_sizes().slice(0, static_cast<size_t>(x.dim() - 1));
  TORCH_CHECK_VALUE(mask->sym_sizes() == tokens, op, ": expected mask to have shape ", tokens,
                    ", that of x without features, but got ", mask->sym_sizes());
  check_same_device(op, "x", x, "mask", *mask);
}

void check_latent_quantize_backward(const at::Tensor& grad_codes, const at::Tensor& grad_loss,
                                    const at::Tensor& x, const at::Tensor& codes,
                                    const at::Tensor& indices, at::IntArrayRef levels) {
  constexpr auto op = "latent_quantize_backward";
  check_floating(op, "x", x);
  check_scalar_levels(op, levels, 2);
  check_same_device(op, "x", x, "codes", codes);
  check_same_device(op, "x", x, "grad_codes", grad_codes);
  check_same_device(op, "x", x, "grad_loss", grad_loss);
  check_same_device(op, "x", x, "indices", indices);
  check_dtype(op, "codes", codes, compute_dtype(x));
  check_dtype(op, "indices", indices, at::kLong);
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == static_cast<int64_t>(levels.size()), op,
                    ": expected x to have ", levels.size(),
                    " features, one per number of levels, but got shape ", x.sym_sizes());
  TORCH_CHECK_VALUE(codes.sym_sizes() == x.sym_sizes() && grad_codes.sym_sizes() == x.sym_sizes(),
                    op, ": expected codes and grad_codes to have the shape of x, ", x.sym_sizes(),
                    ", but got ", codes.sym_sizes(), " and ", grad_codes.sym_sizes());
  const auto tokens = x.sym_sizes().slice(0, static_cast<size_t>(x.dim() - 1));
  TORCH_CHECK_VALUE(indices.sym_sizes() == tokens, op, ": expected indices to have shape ", tokens,
                    ", that of x without features, but got ", indices.sym_sizes());
  TORCH_CHECK_VALUE(grad_loss.dim() == 0, op, ": expected grad_loss to be a scalar, but got shape ",
                    grad_loss.sym_sizes());
}

int64_t count_values(at::IntArrayRef levels) {
  return std::accumulate(levels.begin(), levels.end(), int64_t{0});
}

}  // namespace detail

namespace ops {

LatentQuantizeResult latent_quantize(const at::Tensor& x, const at::Tensor& values,
                                     at::IntArrayRef levels, double commitment, double quantization,
                                     const std::optional<at::Tensor>& mask) {
  using Signature = std::tuple<at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, at::IntArrayRef, double, double,
      const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::latent_quantize");
  auto [codes, indices, loss] = op.call(x, values, levels, commitment, quantization, mask);
  return {codes, indices, loss};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "latent_quantize(Tensor x, Tensor values, int[] levels, *, float commitment=0.0, "
      "float quantization=0.0, Tensor? mask=None) -> (Tensor codes, Tensor indices, Tensor loss)");
  // The gradients of x and values; private, called only by autograd.
  m.def(
      "latent_quantize_backward(Tensor grad_codes, Tensor grad_loss, Tensor x, Tensor codes, "
      "Tensor indices, int[] levels, float commitment, float quantization) -> (Tensor, Tensor)");
}
