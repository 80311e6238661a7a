#include <torchvq/functional/lookup_free.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/softplus.h>
#include <torch/library.h>

#include <torchvq/ops/unit_vectors.h>

#include "detail/checks.h"
#include "detail/precision.h"
#include "detail/without_autocast.h"

namespace torchvq::functional {

at::Tensor on_sphere(const at::Tensor& x, double radius) {
  const auto unit = ops::unit_vectors(x);
  return radius == 1 ? unit : unit * radius;
}

at::Tensor cosine_linear(const at::Tensor& x, const at::Tensor& weight, double scale) {
  constexpr auto op = "cosine_linear";
  detail::check_floating(op, "x", x);
  detail::check_floating(op, "weight", weight);
  detail::check_rank(op, "weight", weight, 2, "(D, D')");
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == weight.sym_size(0), op,
                    ": expected x to have ", weight.sym_size(0), " features, but got shape ",
                    x.sym_sizes());
  const detail::WithoutAutocast without_autocast;
  const auto dtype = detail::value_dtype(x, weight);
  const auto columns = ops::unit_vectors(weight.to(dtype).t()).t();
  return ops::unit_vectors(x.to(dtype)).matmul(columns) * scale;
}

at::Tensor lookup_free_loss(const at::Tensor& per_sample, const at::Tensor& batch,
                            const at::Tensor& commitment_loss, const LookupFreeWeights& weights) {
  auto entropy = per_sample - batch * weights.diversity_gamma;
  if (weights.softplus_offset) entropy = at::softplus(entropy + *weights.softplus_offset);
  return entropy * weights.entropy + commitment_loss * weights.commitment;
}

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("cosine_linear(Tensor x, Tensor weight, *, float scale) -> Tensor",
        TORCH_FN(torchvq::functional::cosine_linear));
}
