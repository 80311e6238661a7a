#include "functional/token_codes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/sort.h>

#include <torchvq/ops/unit_vectors.h>

#include "detail/checks.h"

namespace torchvq::functional {
namespace {

/// The caller's codes already take H x T x K x D values, so float64 scores of
/// H x T x K are acceptable.
at::Tensor nearest_indices(const at::Tensor& x, const at::Tensor& codes, bool cosine,
                           int64_t count) {
  at::NoGradGuard no_grad;
  const auto wide = codes.detach().to(at::kDouble);
  const auto dot = wide.matmul(x.detach().to(at::kDouble).unsqueeze(-1)).squeeze(-1);
  const auto score = cosine ? dot.neg() : wide.square().sum(-1).mul(0.5).sub(dot);
  return std::get<1>(at::sort(score, std::optional<bool>(true), /*dim=*/-1, /*descending=*/false))
      .narrow(-1, 0, count);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> nearest_token_code(const at::Tensor& x,
                                                      const at::Tensor& codebook,
                                                      const std::string& metric,
                                                      std::optional<int64_t> topk) {
  TORCH_CHECK_VALUE(
      codebook.sym_size(0) == x.sym_size(0) && codebook.sym_size(1) == x.sym_size(1) &&
          codebook.sym_size(3) == x.sym_size(2),
      "quantize: expected codes of each token to have shape (H, T, K, D) for x of shape ",
      x.sym_sizes(), ", but got shape ", codebook.sym_sizes());
  const bool cosine = metric == "cosine";
  const auto codes = cosine ? ops::unit_vectors(codebook) : codebook.to(x.scalar_type());
  const auto indices =
      nearest_indices(cosine ? ops::unit_vectors(x) : x, codes, cosine, topk.value_or(1));
  const auto rows = indices.unsqueeze(-1).expand_symint({-1, -1, -1, x.sym_size(2)});
  const auto chosen = at::gather(codes, 2, rows);
  return topk ? std::make_tuple(indices, chosen)
              : std::make_tuple(indices.squeeze(2), chosen.squeeze(2));
}

}  // namespace torchvq::functional
