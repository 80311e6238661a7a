#include "ops/random_normal.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor random_normal(const at::Tensor& rng, int64_t purpose, c10::SymIntArrayRef size,
                         std::optional<at::ScalarType> dtype, int64_t stream) {
  const auto result = detail::check_random_normal(rng, size, dtype);
  return rng.new_empty_symint(size, rng.options().dtype(result));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("random_normal", random_normal); }

}  // namespace torchvq
