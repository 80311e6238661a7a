#include <torchvq/ops/extend_paths.h>

#include <cmath>
#include <utility>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/extend_paths.h"

namespace torchvq {

namespace detail {

namespace {

constexpr auto kExtendPaths = "extend_paths";

/// Checks that the first `rank` sizes are those of `like`.
void check_leading(const char* name, const at::Tensor& tensor, const at::Tensor& like,
                   const char* like_name, int64_t rank) {
  for (int64_t d = 0; d < rank; ++d) {
    check_size(kExtendPaths, name, tensor, d, like.sym_size(d), like_name);
  }
  check_same_device(kExtendPaths, like_name, like, name, tensor);
}

void check_state(const at::Tensor& residual, const at::Tensor& decoded, const at::Tensor& score,
                 const at::Tensor& indices) {
  TORCH_CHECK_TYPE(residual.scalar_type() == at::kFloat || residual.scalar_type() == at::kDouble,
                   kExtendPaths, ": expected residual to be float32 or float64, but got ",
                   residual.scalar_type());
  check_rank(kExtendPaths, "residual", residual, 4, "(H, T, w, D)");
  check_dtype(kExtendPaths, "decoded", decoded, residual.scalar_type());
  check_rank(kExtendPaths, "decoded", decoded, 4, "(H, T, w, D)");
  check_leading("decoded", decoded, residual, "residual", 4);
  check_dtype(kExtendPaths, "score", score, at::kDouble);
  check_rank(kExtendPaths, "score", score, 3, "(H, T, w)");
  check_leading("score", score, residual, "residual", 3);
  check_dtype(kExtendPaths, "indices", indices, at::kLong);
  check_rank(kExtendPaths, "indices", indices, 4, "(H, T, w, levels)");
  check_leading("indices", indices, residual, "residual", 3);
}

}  // namespace

void check_extend_paths(const at::Tensor& residual, const at::Tensor& decoded,
                        const at::Tensor& score, const at::Tensor& indices, const at::Tensor& codes,
                        int64_t beam, const std::optional<at::Tensor>& candidates,
                        std::optional<double> weight) {
  check_state(residual, decoded, score, indices);
  check_floating(kExtendPaths, "codes", codes);
  check_rank(kExtendPaths, "codes", codes, 5, "(H, T, w, C, D)");
  check_leading("codes", codes, residual, "residual", 3);
  check_size(kExtendPaths, "codes", codes, 4, residual.sym_size(3), "features of residual");
  TORCH_CHECK_VALUE(codes.sym_size(2) >= 1 && codes.sym_size(3) >= 1, kExtendPaths,
                    ": expected codes to have at least one path and one candidate, but got shape ",
                    codes.sym_sizes());
  TORCH_CHECK_VALUE(beam >= 1, kExtendPaths, ": expected beam to be at least 1, but got ", beam);
  if (candidates) {
    check_dtype(kExtendPaths, "candidates", *candidates, at::kLong);
    check_rank(kExtendPaths, "candidates", *candidates, 4, "(H, T, w, C)");
    check_leading("candidates", *candidates, codes, "codes", 4);
  }
  if (weight) check_non_negative(kExtendPaths, "weight", *weight);
}

PathTensors new_paths(const at::Tensor& residual, const at::Tensor& score,
                      const at::Tensor& indices, const at::Tensor& codes, int64_t beam) {
  const auto heads = residual.sym_size(0), tokens = residual.sym_size(1),
             dim = residual.sym_size(3);
  const auto width = c10::SymInt(beam).min(residual.sym_size(2) * codes.sym_size(3));
  return {residual.new_empty_symint({heads, tokens, width, dim}),
          residual.new_empty_symint({heads, tokens, width, dim}),
          score.new_empty_symint({heads, tokens, width}),
          indices.new_empty_symint({heads, tokens, width, indices.sym_size(3) + 1})};
}

}  // namespace detail

namespace ops {

ResidualPaths extend_paths(const ResidualPaths& paths, const at::Tensor& codes, int64_t beam,
                           const std::optional<at::Tensor>& candidates,
                           std::optional<double> weight) {
  using Signature = detail::PathTensors(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                        const at::Tensor&, const at::Tensor&, int64_t,
                                        const std::optional<at::Tensor>&, std::optional<double>);
  static auto op = detail::op_handle<Signature>("torchvq::extend_paths");
  auto [residual, decoded, score, indices] = op.call(
      paths.residual, paths.decoded, paths.score, paths.indices, codes, beam, candidates, weight);
  return {std::move(residual), std::move(decoded), std::move(score), std::move(indices)};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "extend_paths(Tensor residual, Tensor decoded, Tensor score, Tensor indices, Tensor codes, "
      "int beam, *, Tensor? candidates=None, float? weight=None) "
      "-> (Tensor residual, Tensor decoded, Tensor score, Tensor indices)");
}
