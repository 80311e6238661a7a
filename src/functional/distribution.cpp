#include <torchvq/functional/distribution.h>

#include <limits>

#include <torch/library.h>

#include "detail/checks.h"
#include "ops/scalar_perturb.h"

namespace torchvq::functional {

at::Tensor distribution_cdf(const at::Tensor& x, std::string_view cdf) {
  constexpr auto op = "distribution_cdf";
  detail::check_floating(op, "x", x);
  const auto kind = detail::parse_distribution(op, cdf);
  return detail::cumulative_any(kind, x.to(detail::compute_dtype(x)));
}

at::Tensor distribution_quantile(const at::Tensor& u, std::string_view cdf) {
  constexpr auto op = "distribution_quantile";
  detail::check_floating(op, "u", u);
  const auto kind = detail::parse_distribution(op, cdf);
  const auto wide = u.to(detail::compute_dtype(u));
  // Beyond [0, 1], the tangent of the Cauchy distribution would return to finite values.
  return detail::quantile_any(kind, wide)
      .masked_fill(wide.ge(0).logical_and(wide.le(1)).logical_not(),
                   std::numeric_limits<double>::quiet_NaN());
}

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("distribution_cdf(Tensor x, str cdf) -> Tensor",
        TORCH_FN(torchvq::functional::distribution_cdf));
  m.def("distribution_quantile(Tensor u, str cdf) -> Tensor",
        TORCH_FN(torchvq::functional::distribution_quantile));
}
