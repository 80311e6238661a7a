#include <torchvq/ops/random_normal.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "ops/random_draw.h"
#include "ops/random_normal.h"

namespace torchvq {

namespace detail {

at::ScalarType check_random_normal(const at::Tensor& rng, c10::SymIntArrayRef size,
                                   std::optional<at::ScalarType> dtype) {
  return check_random_draw("random_normal", rng, size, dtype);
}

}  // namespace detail

namespace ops {

at::Tensor random_normal(const at::Tensor& rng, RandomPurpose purpose, c10::SymIntArrayRef size,
                         std::optional<at::ScalarType> dtype, int64_t stream) {
  using Signature = at::Tensor(const at::Tensor&, int64_t, c10::SymIntArrayRef,
                               std::optional<at::ScalarType>, int64_t);
  static auto op = detail::op_handle<Signature>("torchvq::random_normal");
  return op.call(rng, static_cast<int64_t>(purpose), size, dtype, stream);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "random_normal(Tensor rng, int purpose, SymInt[] size, *, ScalarType? dtype=None, "
      "int stream=0) -> Tensor");
}
