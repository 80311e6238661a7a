// Any device: the steps of kernels/random.h, with tensor operators.
#include "ops/random_numbers.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <c10/util/accumulate.h>
#include <torch/library.h>

#include "detail/random_tensor.h"

namespace torchvq {
namespace {

at::Tensor random_numbers(const at::Tensor& rng, int64_t purpose, c10::SymIntArrayRef size,
                          bool normal, std::optional<at::ScalarType> dtype, int64_t stream) {
  const auto result = detail::check_random_numbers(rng, size, dtype);
  const auto shape = C10_AS_INTARRAYREF_SLOW(size);
  const auto key = detail::random_key(rng, purpose, stream);
  const auto positions = at::arange(c10::multiply_integers(shape), rng.options());
  if (!normal) {
    const auto bits = detail::random_bits(key, positions);
    return detail::uniform_from_bits(bits, detail::uniform_precision(result))
        .to(result)
        .view(shape);
  }
  const auto values = detail::normal_from_bits(detail::random_bits(key, positions * 2),
                                               detail::random_bits(key, positions * 2 + 1));
  // Half-precision types are rounded by way of float32, as in the CPU kernel.
  return (result == at::kDouble ? values : values.to(at::kFloat).to(result)).view(shape);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("random_numbers", random_numbers);
}

}  // namespace torchvq
