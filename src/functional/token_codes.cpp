#include "functional/token_codes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/gather.h>

#include <torchvq/ops/unit_vectors.h>

#include "detail/checks.h"

namespace torchvq::functional {
namespace {

/// The caller's codes already hold H x T x K x D values; scores of a quarter of that in float64 are no worse.
at::Tensor nearest_index(const at::Tensor& x, const at::Tensor& codes, bool cosine) {
  at::NoGradGuard no_grad;
  const auto wide = codes.detach().to(at::kDouble);
  const auto dot = wide.matmul(x.detach().to(at::kDouble).unsqueeze(-1)).squeeze(-1);
  return (cosine ? dot : dot.sub(wide.square().sum(-1), 0.5)).argmax(-1);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> nearest_token_code(const at::Tensor& x, const at::Tensor& codebook,
                                                      const std::string& metric) {
  TORCH_CHECK_VALUE(codebook.sym_size(0) == x.sym_size(0) && codebook.sym_size(1) == x.sym_size(1) &&
                        codebook.sym_size(3) == x.sym_size(2),
                    "quantize: expected codes of each token to have shape (H, T, K, D) for x of shape ",
                    x.sym_sizes(), ", but got shape ", codebook.sym_sizes());
  const bool cosine = metric == "cosine";
  const auto codes = cosine ? ops::unit_vectors(codebook) : codebook.to(x.scalar_type());
  const auto indices = nearest_index(cosine ? ops::unit_vectors(x) : x, codes, cosine);
  const auto rows = indices.unsqueeze(-1).unsqueeze(-1).expand_symint({-1, -1, 1, x.sym_size(2)});
  return {indices, at::gather(codes, 2, rows).squeeze(2)};
}

}  // namespace torchvq::functional
