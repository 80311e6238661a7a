#include "functional/token_codes.h"

#include <cmath>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/sort.h>

#include <torchvq/ops/unit_vectors.h>

#include "detail/checks.h"
#include "detail/readable.h"
#include "kernels/cpu/nearest_code_exact.h"

namespace torchvq::functional {
namespace {

constexpr int64_t kProductsPerTask = int64_t{1} << 16;

/// For codes in memory, by the kernel that decides nearest_code: one pass instead of copies.
at::Tensor nearest_in_memory(const at::Tensor& x, const at::Tensor& codes, bool cosine) {
  const int64_t tokens = x.size(0) * x.size(1), size = codes.size(2), dim = codes.size(3);
  auto indices = at::empty({x.size(0), x.size(1), 1}, x.options().dtype(at::kLong));
  const auto kernel = kernels::nearest_code_exact(kernels::cpu_level());
  const auto *rows = x.const_data_ptr<float>(), *all = codes.const_data_ptr<float>();
  auto* to = indices.mutable_data_ptr<int64_t>();
  const int64_t grain = 1 + kProductsPerTask / (size * dim + 1);
  at::parallel_for(0, tokens, grain, [&](int64_t begin, int64_t end) {
    std::vector<const float*> own(static_cast<size_t>(size));
    std::vector<double> scores(own.size());
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t k = 0; k < size; ++k) {
        own[static_cast<size_t>(k)] = all + (row * size + k) * dim;
      }
      kernel.pair_scores(rows + row * dim, dim, own.data(), size, cosine, scores.data());
      size_t best = 0;
      for (size_t k = 1; k < scores.size(); ++k) {
        // NaN comes after everything else.
        if (scores[k] < scores[best] || (std::isnan(scores[best]) && !std::isnan(scores[k]))) {
          best = k;
        }
      }
      to[row] = static_cast<int64_t>(best);
    }
  });
  return indices;
}

/// The caller's codes already take H x T x K x D values, so float64 scores of
/// H x T x K are acceptable.
at::Tensor nearest_indices(const at::Tensor& x, const at::Tensor& codes, bool cosine,
                           int64_t count) {
  at::NoGradGuard no_grad;
  const auto rows = x.detach(), own = codes.detach();
  if (count == 1 && detail::is_plain(rows) && detail::is_plain(own) &&
      rows.scalar_type() == at::kFloat && own.scalar_type() == at::kFloat && own.numel() > 0) {
    return nearest_in_memory(rows, own, cosine);
  }
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
