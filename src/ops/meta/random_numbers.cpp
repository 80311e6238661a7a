#include "ops/random_numbers.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor random_numbers(const at::Tensor& rng, int64_t /*purpose*/, c10::SymIntArrayRef size,
                          bool /*normal*/, std::optional<at::ScalarType> dtype,
                          int64_t /*stream*/) {
  const auto result = detail::check_random_numbers(rng, size, dtype);
  return rng.new_empty_symint(size, rng.options().dtype(result));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("random_numbers", random_numbers); }

}  // namespace torchvq
