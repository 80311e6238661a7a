#include "ops/random_uniform.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor random_uniform(const at::Tensor& rng, int64_t purpose, c10::SymIntArrayRef size,
                          std::optional<at::ScalarType> dtype, int64_t stream) {
  const auto result = detail::check_random_uniform(rng, size, dtype);
  return rng.new_empty_symint(size, rng.options().dtype(result));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("random_uniform", random_uniform); }

}  // namespace torchvq
