#include <torchvq/ops/advance_rng_.h>

#include <torch/library.h>

#include "detail/no_gradient.h"

namespace torchvq {
namespace {

void advance_rng_(const at::Tensor& rng, const std::optional<at::Tensor>& mask) {
  detail::without_gradient({at::TensorList(rng)}, [&] { ops::advance_rng_(rng, mask); });
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("advance_rng_", advance_rng_); }

}  // namespace torchvq
