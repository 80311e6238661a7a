#include "ops/scalar_quantize.h"

#include <tuple>

#include <torch/library.h>

namespace torchvq {
namespace {

std::tuple<at::Tensor, at::Tensor> scalar_quantize(const at::Tensor& x, at::IntArrayRef levels,
                                                   std::string_view bound) {
  detail::check_scalar_quantize(x, levels, bound);
  const auto sizes = x.sym_sizes();
  return {x.new_empty_symint(sizes, x.options().dtype(detail::compute_dtype(x))),
          x.new_empty_symint(sizes.slice(0, sizes.size() - 1), x.options().dtype(at::kLong))};
}

at::Tensor scalar_quantize_backward(const at::Tensor& grad, const at::Tensor& x,
                                    at::IntArrayRef levels, std::string_view bound) {
  detail::check_scalar_quantize_backward(grad, x, levels, bound);
  return x.new_empty_symint(x.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("scalar_quantize", scalar_quantize);
  m.impl("scalar_quantize_backward", scalar_quantize_backward);
}

}  // namespace torchvq
