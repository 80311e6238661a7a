// Any device: the steps of kernels/random.h, with tensor operators.
#include "ops/random_normal.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "detail/random_tensor.h"

namespace torchvq {
namespace {

at::Tensor random_normal(const at::Tensor& rng, int64_t purpose, c10::SymIntArrayRef size,
                         std::optional<at::ScalarType> dtype, int64_t stream) {
  const auto result = detail::check_random_normal(rng, size, dtype);
  const auto shape = C10_AS_INTARRAYREF_SLOW(size);
  const auto positions = at::arange(c10::multiply_integers(shape), rng.options()) * 2;
  const auto key = detail::random_key(rng, purpose, stream);
  const auto values = detail::normal_from_bits(detail::random_bits(key, positions),
                                               detail::random_bits(key, positions + 1));
  // Half-precision types are rounded by way of float32, as in the CPU kernel.
  return (result == at::kDouble ? values : values.to(at::kFloat).to(result)).view(shape);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("random_normal", random_normal);
}

}  // namespace torchvq
