#include <torchvq/kmeans.h>

#include <ATen/ops/tensor.h>

#include <torchvq/ops/kmeans.h>

#include "detail/checks.h"

namespace torchvq {

KmeansOutput kmeans(const at::Tensor& x, int64_t codebook_size, const KmeansOptions& options) {
  detail::check_defined("kmeans", "x", x);
  TORCH_CHECK_VALUE(x.dim() == 2 || x.dim() == 3,
                    "kmeans: expected x to have shape (N, D) or (H, N, D), but got shape ",
                    x.sizes());
  const bool single = x.dim() == 2;
  const auto rng = at::tensor({options.seed, int64_t{0}}, at::kLong).to(x.device());
  auto [codebook, counts] = ops::kmeans(single ? x.unsqueeze(0) : x, codebook_size, rng,
                                        options.iterations, options.metric, options.mask);
  TORCH_CHECK_VALUE(counts.sum(-1).ne(0).all().item<bool>(),
                    "kmeans: expected x to hold at least 1 finite vector that is not masked",
                    options.metric == "cosine" ? " or zero" : "", ", but got none of ", x.size(-2));
  if (single) return {codebook.squeeze(0), counts.squeeze(0)};
  return {codebook, counts};
}

}  // namespace torchvq
