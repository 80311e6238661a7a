#include <torchvq/ops/commitment_loss.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/commitment_loss.h"

namespace torchvq {

namespace detail {

void check_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                           const std::optional<at::Tensor>& mask) {
  check_same_tokens("commitment_loss", "x", x, "codes", codes);
  check_mask("commitment_loss", mask, x);
}

}  // namespace detail

namespace ops {

at::Tensor commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                           const std::optional<at::Tensor>& mask) {
  using Signature =
      at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::commitment_loss");
  return op.call(x, codes, mask);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("commitment_loss(Tensor x, Tensor codes, *, Tensor? mask=None) -> Tensor");
}
