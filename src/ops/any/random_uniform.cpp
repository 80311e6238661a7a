// Any device: the steps of kernels/random.h, with tensor operators.
#include "ops/random_uniform.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "detail/random_tensor.h"
#include "ops/random_precision.h"

namespace torchvq {
namespace {

at::Tensor random_uniform(const at::Tensor& rng, int64_t purpose, c10::SymIntArrayRef size,
                          std::optional<at::ScalarType> dtype, int64_t stream) {
  const auto result = detail::check_random_uniform(rng, size, dtype);
  const auto shape = C10_AS_INTARRAYREF_SLOW(size);
  const auto positions = at::arange(c10::multiply_integers(shape), rng.options());
  const auto bits = detail::random_bits(detail::random_key(rng, purpose, stream), positions);
  return detail::uniform_from_bits(bits, detail::uniform_precision(result)).to(result).view(shape);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("random_uniform", random_uniform);
}

}  // namespace torchvq
