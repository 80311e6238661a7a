#include "ops/scalar_noise.h"

#include <torch/library.h>

#include <torchvq/ops/scalar_noise.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "detail/random_tensor.h"
#include "detail/scalar_levels.h"

namespace torchvq {

namespace detail {

void check_scalar_noise(const at::Tensor& codes, at::IntArrayRef levels, const at::Tensor& rng,
                        double fraction) {
  constexpr auto op = "scalar_noise";
  TORCH_CHECK_TYPE(codes.scalar_type() == at::kFloat || codes.scalar_type() == at::kDouble, op,
                   ": expected codes to be float32 or float64, but got ", codes.scalar_type());
  check_strided(op, "codes", codes);
  check_scalar_levels(op, levels, 2);
  check_rng(op, rng);
  TORCH_CHECK_VALUE(codes.dim() >= 1 && codes.sym_size(-1) == static_cast<int64_t>(levels.size()),
                    op, ": expected codes to have ", levels.size(),
                    " features, one per number of levels, but got shape ", codes.sym_sizes());
  TORCH_CHECK_VALUE(fraction >= 0 && fraction <= 1, op,
                    ": expected fraction to be in [0, 1], but got ", fraction);
}

}  // namespace detail

namespace ops {

at::Tensor scalar_noise(const at::Tensor& codes, at::IntArrayRef levels, const at::Tensor& rng,
                        double fraction, int64_t stream) {
  using Signature =
      at::Tensor(const at::Tensor&, at::IntArrayRef, const at::Tensor&, double, int64_t);
  static auto op = detail::op_handle<Signature>("torchvq::scalar_noise");
  return op.call(codes, levels, rng, fraction, stream);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "scalar_noise(Tensor codes, int[] levels, Tensor rng, *, float fraction, int stream=0) "
      "-> Tensor");
}
