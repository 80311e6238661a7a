#include <torchvq/ops/advance_rng_.h>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "ops/advance_rng_.h"

namespace torchvq {

namespace detail {

void check_advance_rng_(const at::Tensor& rng, const std::optional<at::Tensor>& mask) {
  constexpr auto op = "advance_rng_";
  check_dtype(op, "rng", rng, at::kLong);
  check_rank(op, "rng", rng, 1, "(2,)");
  check_size(op, "rng", rng, 0, 2, "seed and step");
  check_no_overlap(op, "rng", rng);
  TORCH_CHECK_TYPE(!mask || at::isIntegralType(mask->scalar_type(), /*includeBool=*/true), op,
                   ": expected mask to be bool or an integer, but got ", mask->scalar_type());
}

}  // namespace detail

namespace ops {

void advance_rng_(const at::Tensor& rng, const std::optional<at::Tensor>& mask) {
  using Signature = void(const at::Tensor&, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::advance_rng_");
  op.call(rng, mask);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("advance_rng_(Tensor(a!) rng, Tensor? mask=None) -> ()");
}
