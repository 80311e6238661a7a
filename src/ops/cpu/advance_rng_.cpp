#include "ops/advance_rng_.h"

#include <algorithm>

#include <torch/library.h>

namespace torchvq {
namespace {

template <typename T>
bool any_of(const at::Tensor& contiguous) {
  const auto* values = contiguous.const_data_ptr<T>();
  return std::any_of(values, values + contiguous.numel(), [](T value) { return value != T(0); });
}

bool counts(const at::Tensor& mask) {
  if (mask.scalar_type() == at::kBool) return any_of<bool>(mask.contiguous());
  return any_of<int64_t>(mask.to(at::kLong).contiguous());
}

void advance_rng_(const at::Tensor& rng, const std::optional<at::Tensor>& mask) {
  detail::check_advance_rng_(rng, mask);
  if (mask && !counts(*mask)) return;
  // Unsigned addition wraps around, where signed addition would overflow.
  auto& step = *(rng.mutable_data_ptr<int64_t>() + rng.stride(0));
  step = static_cast<int64_t>(static_cast<uint64_t>(step) + 1);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("advance_rng_", advance_rng_); }

}  // namespace torchvq
