// Any device: reads nothing on the host.
#include "ops/advance_rng_.h"

#include <torch/library.h>

namespace torchvq {
namespace {

void advance_rng_(const at::Tensor& rng, const std::optional<at::Tensor>& mask) {
  detail::check_advance_rng_(rng, mask);
  auto step = rng.select(0, 1);
  if (mask) {
    step.add_(mask->any());
  } else {
    step.add_(1);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("advance_rng_", advance_rng_); }

}  // namespace torchvq
