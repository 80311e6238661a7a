#include <torchvq/ops/random_uniform.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "ops/random_draw.h"
#include "ops/random_uniform.h"

namespace torchvq {

namespace detail {

at::ScalarType check_random_uniform(const at::Tensor& rng, c10::SymIntArrayRef size,
                                    std::optional<at::ScalarType> dtype) {
  return check_random_draw("random_uniform", rng, size, dtype);
}

}  // namespace detail

namespace ops {

at::Tensor random_uniform(const at::Tensor& rng, RandomPurpose purpose, c10::SymIntArrayRef size,
                          std::optional<at::ScalarType> dtype, int64_t stream) {
  using Signature = at::Tensor(const at::Tensor&, int64_t, c10::SymIntArrayRef,
                               std::optional<at::ScalarType>, int64_t);
  static auto op = detail::op_handle<Signature>("torchvq::random_uniform");
  return op.call(rng, static_cast<int64_t>(purpose), size, dtype, stream);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "random_uniform(Tensor rng, int purpose, SymInt[] size, *, ScalarType? dtype=None, "
      "int stream=0) -> Tensor");
}
