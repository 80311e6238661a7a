#include <torchvq/functional/random_projection.h>

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/randn.h>
#include <torch/library.h>

#include "detail/checks.h"
#include "detail/precision.h"
#include "detail/without_autocast.h"

namespace torchvq::functional {

at::Tensor random_projection(const at::Tensor& x, const at::Tensor& projections, bool norm) {
  constexpr auto op = "random_projection";
  const detail::WithoutAutocast without_autocast;
  detail::check_floating(op, "x", x);
  detail::check_floating(op, "projections", projections);
  detail::check_rank(op, "projections", projections, 3, "(C, D, E)");
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == projections.sym_size(1), op,
                    ": expected x to have ", projections.sym_size(1), " features, but got shape ",
                    x.sym_sizes());
  const auto dtype = detail::compute_dtype(x);
  auto wide = x.to(dtype);
  if (norm) {
    wide = at::layer_norm_symint(wide, {wide.sym_size(-1)});
  }
  // (C, D, E) to (D, C * E): one product for all codebooks.
  return wide.matmul(projections.to(dtype).transpose(0, 1).flatten(1));
}

at::Tensor random_projections(int64_t codebooks, int64_t dim, int64_t codebook_dim,
                              bool vqp_compat) {
  const at::NoGradGuard no_grad;
  const auto fans = vqp_compat ? codebook_dim * (dim + codebooks) : dim + codebook_dim;
  return at::randn({codebooks, dim, codebook_dim}) * std::sqrt(2.0 / static_cast<double>(fans));
}

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("random_projection(Tensor x, Tensor projections, bool norm=True) -> Tensor",
        TORCH_FN(torchvq::functional::random_projection));
  m.def(
      "random_projections(int codebooks, int dim, int codebook_dim, bool vqp_compat=False) "
      "-> Tensor",
      TORCH_FN(torchvq::functional::random_projections));
}
