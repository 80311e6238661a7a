#include "ops/commitment_loss.h"

#include <torch/library.h>

#include "ops/loss_gradients.h"

namespace torchvq {
namespace {

at::Tensor commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                           const std::optional<at::Tensor>& mask) {
  detail::check_commitment_loss(x, codes, mask);
  return detail::empty_loss(x, codes);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("commitment_loss", commitment_loss); }

}  // namespace torchvq
