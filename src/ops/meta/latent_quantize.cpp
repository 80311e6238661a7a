#include "ops/latent_quantize.h"

#include <torch/library.h>

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

std::tuple<at::Tensor, at::Tensor, at::Tensor> latent_quantize(
    const at::Tensor& x, const at::Tensor& values, at::IntArrayRef levels, double commitment,
    double quantization, const OptionalTensor& mask) {
  detail::check_latent_quantize(x, values, levels, commitment, quantization, mask);
  const auto options = x.options().dtype(detail::compute_dtype(x));
  const auto sizes = x.sym_sizes();
  return {x.new_empty_symint(sizes, options),
          x.new_empty_symint(sizes.slice(0, sizes.size() - 1), x.options().dtype(at::kLong)),
          x.new_empty_symint(c10::SymIntArrayRef(), options)};
}

std::tuple<at::Tensor, at::Tensor> latent_quantize_backward(
    const at::Tensor& grad_codes, const at::Tensor& grad_loss, const at::Tensor& x,
    const at::Tensor& codes, const at::Tensor& indices, at::IntArrayRef levels,
    double /*commitment*/, double /*quantization*/) {
  detail::check_latent_quantize_backward(grad_codes, grad_loss, x, codes, indices, levels);
  return {x.new_empty_symint(x.sym_sizes()),
          codes.new_empty_symint({c10::SymInt(detail::count_values(levels))})};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("latent_quantize", latent_quantize);
  m.impl("latent_quantize_backward", latent_quantize_backward);
}

}  // namespace torchvq
