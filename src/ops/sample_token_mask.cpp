#include "ops/sample_token_mask.h"

#include <torch/library.h>

#include <torchvq/ops/sample_token_mask.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "detail/random_tensor.h"

namespace torchvq {

namespace detail {

void check_sample_token_mask(const at::Tensor& rng, const c10::SymInt& tokens, double fraction,
                             const std::optional<at::Tensor>& mask) {
  constexpr auto op = "sample_token_mask";
  check_rng(op, rng);
  TORCH_CHECK_VALUE(tokens >= 0, op, ": expected tokens to be 0 or more, but got ", tokens);
  TORCH_CHECK_VALUE(fraction > 0 && fraction <= 1, op,
                    ": expected fraction to be in (0, 1], but got ", fraction);
  if (!mask.has_value()) return;
  check_dtype(op, "mask", *mask, at::kBool);
  TORCH_CHECK_VALUE((mask->dim() == 1 || mask->dim() == 2) && mask->sym_size(-1) == tokens, op,
                    ": expected mask to have shape (H, N) or (N,) with ", tokens,
                    " tokens, but got shape ", mask->sym_sizes());
  check_same_device(op, "rng", rng, "mask", *mask);
}

}  // namespace detail

at::Tensor ops::sample_token_mask(const at::Tensor& rng, c10::SymInt tokens, double fraction,
                                  const std::optional<at::Tensor>& mask) {
  using Signature =
      at::Tensor(const at::Tensor&, c10::SymInt, double, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::sample_token_mask");
  return op.call(rng, std::move(tokens), fraction, mask);
}

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "sample_token_mask(Tensor rng, SymInt tokens, float fraction, *, Tensor? mask=None) "
      "-> Tensor");
}
