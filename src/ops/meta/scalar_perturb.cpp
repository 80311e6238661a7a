#include "ops/scalar_perturb.h"

#include <tuple>

#include <torch/library.h>

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> scalar_perturb(
    const at::Tensor& x, at::IntArrayRef levels, const OptionalTensor& rng, double quantize_rate,
    std::string_view cdf, std::string_view form, double eps, const OptionalTensor& mask) {
  detail::check_scalar_perturb(x, levels, rng, quantize_rate, cdf, form, eps, mask);
  const auto values = x.options().dtype(detail::compute_dtype(x));
  const auto numbers = x.options().dtype(at::kLong);
  const auto sizes = x.sym_sizes();
  return {x.new_empty_symint(sizes, values), x.new_empty_symint(sizes, numbers),
          x.new_empty_symint(sizes.slice(0, sizes.size() - 1), numbers),
          x.new_empty_symint(c10::SymIntArrayRef(), values)};
}

at::Tensor scalar_perturb_backward(const at::Tensor& grad, const at::Tensor& x,
                                   const at::Tensor& indices, std::string_view cdf,
                                   std::string_view form) {
  detail::check_scalar_perturb_backward(grad, x, indices, cdf, form);
  return x.new_empty_symint(x.sym_sizes());
}

at::Tensor scalar_centroids(const at::Tensor& indices, at::IntArrayRef levels, std::string_view cdf,
                            std::string_view form, double eps,
                            std::optional<at::ScalarType> wanted) {
  const auto dtype = wanted.value_or(at::kFloat);
  detail::check_scalar_centroids(indices, levels, cdf, form, eps, dtype);
  auto sizes = indices.sym_sizes().vec();
  sizes.emplace_back(static_cast<int64_t>(levels.size()));
  return indices.new_empty_symint(sizes, indices.options().dtype(dtype));
}

at::Tensor scalar_act_levels(const at::Tensor& act, at::IntArrayRef levels) {
  detail::check_scalar_act_levels(act, levels);
  return act.new_empty_symint(act.sym_sizes(), act.options().dtype(at::kLong));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("scalar_perturb", scalar_perturb);
  m.impl("scalar_perturb_backward", scalar_perturb_backward);
  m.impl("scalar_centroids", scalar_centroids);
  m.impl("scalar_act_levels", scalar_act_levels);
}

}  // namespace torchvq
