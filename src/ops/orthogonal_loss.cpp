#include <torchvq/ops/orthogonal_loss.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/random_tensor.h"
#include "detail/token_checks.h"
#include "ops/orthogonal_loss.h"

namespace torchvq {

namespace detail {

void check_orthogonal_max_codes(std::optional<int64_t> max_codes) {
  TORCH_CHECK_VALUE(!max_codes || *max_codes >= 1,
                    "orthogonal_loss: expected max_codes to be at least 1, but got ", *max_codes);
}

void check_orthogonal_loss(const at::Tensor& codebook, const std::optional<at::Tensor>& indices,
                           std::optional<int64_t> max_codes, const std::optional<at::Tensor>& rng) {
  constexpr auto op = "orthogonal_loss";
  check_codebook(op, codebook);
  if (indices.has_value()) {
    check_dtype(op, "indices", *indices, at::kLong);
    check_rank(op, "indices", *indices, 2, "(H, N)");
    check_size(op, "indices", *indices, 0, codebook.sym_size(0), "heads of codebook");
    check_same_device(op, "codebook", codebook, "indices", *indices);
  }
  check_orthogonal_max_codes(max_codes);
  TORCH_CHECK_VALUE(!max_codes || rng.has_value(), op,
                    ": expected rng to be given with max_codes, but got None");
  if (rng.has_value()) {
    check_rng(op, *rng);
    check_same_device(op, "codebook", codebook, "rng", *rng);
  }
}

}  // namespace detail

namespace ops {

at::Tensor orthogonal_loss(const at::Tensor& codebook, const std::optional<at::Tensor>& indices,
                           std::optional<int64_t> max_codes, const std::optional<at::Tensor>& rng) {
  using Signature = at::Tensor(const at::Tensor&, const std::optional<at::Tensor>&,
                               std::optional<int64_t>, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::orthogonal_loss");
  return op.call(codebook, indices, max_codes, rng);
}

std::tuple<at::Tensor, at::Tensor> orthogonal_loss_forward(const at::Tensor& codebook,
                                                           const std::optional<at::Tensor>& indices,
                                                           std::optional<int64_t> max_codes,
                                                           const std::optional<at::Tensor>& rng,
                                                           bool grad) {
  using Signature = std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const std::optional<at::Tensor>&, std::optional<int64_t>,
      const std::optional<at::Tensor>&, bool);
  static auto op = detail::op_handle<Signature>("torchvq::orthogonal_loss_forward");
  return op.call(codebook, indices, max_codes, rng, grad);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "orthogonal_loss(Tensor codebook, *, Tensor? indices=None, int? max_codes=None, "
      "Tensor? rng=None) -> Tensor");
  m.def(
      "orthogonal_loss_forward(Tensor codebook, *, Tensor? indices, int? max_codes, Tensor? rng, "
      "bool grad) -> (Tensor, Tensor)");
}
