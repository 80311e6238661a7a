#include <torchvq/functional/rotate_features.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/randn.h>
#include <torch/library.h>

#include "detail/checks.h"
#include "detail/precision.h"
#include "detail/without_autocast.h"

namespace torchvq::functional {

at::Tensor rotate_features(const at::Tensor& x, const at::Tensor& rotation, bool inverse) {
  constexpr auto op = "rotate_features";
  detail::check_floating(op, "x", x);
  detail::check_floating(op, "rotation", rotation);
  detail::check_rank(op, "rotation", rotation, 2, "(D, D)");
  TORCH_CHECK_VALUE(x.dim() >= 1 && rotation.sym_size(0) == rotation.sym_size(1) &&
                        x.sym_size(-1) == rotation.sym_size(0),
                    op, ": expected rotation to have shape (D, D) for x (*, D), but got shapes ",
                    rotation.sym_sizes(), " and ", x.sym_sizes());
  const detail::WithoutAutocast without_autocast;
  const auto dtype = detail::compute_dtype(x);
  const auto matrix = rotation.to(dtype);
  return x.to(dtype).matmul(inverse ? matrix.t() : matrix);
}

at::Tensor random_rotation(int64_t dim) {
  const at::NoGradGuard no_grad;
  const auto [q, r] = at::linalg_qr(at::randn({dim, dim}));
  // The signs of r's diagonal are a convention of the linear algebra library; multiplying by them
  // makes q uniformly distributed. LAPACK's result is column-major, but serialization needs
  // contiguous rows.
  return (q * r.diagonal().sign()).contiguous();
}

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("rotate_features(Tensor x, Tensor rotation, bool inverse=False) -> Tensor",
        TORCH_FN(torchvq::functional::rotate_features));
  m.def("random_rotation(int dim) -> Tensor", TORCH_FN(torchvq::functional::random_rotation));
}
