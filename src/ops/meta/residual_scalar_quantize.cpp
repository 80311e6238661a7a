#include "ops/residual_scalar_quantize.h"

#include <torch/library.h>

#include "ops/scalar_quantize.h"

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor> residual_scalar_quantize(const at::Tensor& x,
                                                            at::IntArrayRef levels,
                                                            const at::Tensor& scales,
                                                            std::string_view bound) {
  detail::check_residual_scalar_quantize(x, levels, scales, bound);
  auto sizes = x.sym_sizes().vec();
  const auto quantized = x.new_empty_symint(sizes, x.options().dtype(detail::compute_dtype(x)));
  sizes.back() = scales.sym_size(0);
  return {quantized, x.new_empty_symint(sizes, x.options().dtype(at::kLong))};
}

at::Tensor residual_scalar_quantize_backward(const at::Tensor& grad, const at::Tensor& x,
                                             at::IntArrayRef levels, const at::Tensor& scales,
                                             std::string_view bound) {
  detail::check_residual_scalar_quantize_backward(grad, x, levels, scales, bound);
  return x.new_empty_symint(x.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("residual_scalar_quantize", residual_scalar_quantize);
  m.impl("residual_scalar_quantize_backward", residual_scalar_quantize_backward);
}

}  // namespace torchvq
