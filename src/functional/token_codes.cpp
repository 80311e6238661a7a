#include "functional/token_codes.h"

#include <cmath>
#include <limits>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gather.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sort.h>

#include <torchvq/ops/sample_codes.h>
#include <torchvq/ops/unit_vectors.h>

#include "detail/checks.h"
#include "detail/readable.h"
#include "detail/row_keys.h"
#include "detail/token_code_scores.h"

namespace torchvq::functional {
namespace {

/// For codes in memory, by the kernel that decides nearest_code: one pass instead of copies.
at::Tensor nearest_in_memory(const at::Tensor& x, const at::Tensor& codes, bool cosine) {
  const int64_t tokens = x.size(0) * x.size(1), size = codes.size(2), dim = codes.size(3);
  auto indices = at::empty({x.size(0), x.size(1), 1}, x.options().dtype(at::kLong));
  auto* const to = indices.mutable_data_ptr<int64_t>();
  detail::visit_token_code_scores(
      x.const_data_ptr<float>(), codes.const_data_ptr<float>(), tokens, size, dim, cosine,
      [&](int64_t token, const std::vector<double>& scores) {
        size_t best = 0;
        for (size_t k = 1; k < scores.size(); ++k) {
          // NaN comes after everything else.
          if (scores[k] < scores[best] || (std::isnan(scores[best]) && !std::isnan(scores[k]))) {
            best = k;
          }
        }
        to[token] = static_cast<int64_t>(best);
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

void check_token_codes(const at::Tensor& x, const at::Tensor& codebook) {
  TORCH_CHECK_VALUE(
      codebook.sym_size(0) == x.sym_size(0) && codebook.sym_size(1) == x.sym_size(1) &&
          codebook.sym_size(3) == x.sym_size(2),
      "quantize: expected codes of each token to have shape (H, T, K, D) for x of shape ",
      x.sym_sizes(), ", but got shape ", codebook.sym_sizes());
}

at::Tensor searched_codes(const at::Tensor& codebook, at::ScalarType dtype, bool cosine) {
  return cosine ? ops::unit_vectors(codebook.to(dtype)) : codebook.to(dtype);
}

/// The codes at indices (H, T, k); without topk, of the only one, without that axis.
std::tuple<at::Tensor, at::Tensor> codes_at(const at::Tensor& codes, const at::Tensor& indices,
                                            std::optional<int64_t> topk) {
  // Users may write to the indices that they receive, and autograd saves those of the gather.
  const bool saved = at::GradMode::is_enabled() && codes.requires_grad();
  const auto own = saved ? indices.clone() : indices;
  const auto rows = own.unsqueeze(-1).expand_symint({-1, -1, -1, codes.sym_size(3)});
  const auto chosen = at::gather(codes, 2, rows);
  return topk ? std::make_tuple(indices, chosen)
              : std::make_tuple(indices.squeeze(2), chosen.squeeze(2));
}

/// token_scores() with zeros in place of absent tokens (H, T) and their codes, whose numbers would
/// spoil the gradient.
at::Tensor present_scores(const at::Tensor& x, const at::Tensor& codebook,
                          const std::string& metric, const at::Tensor& absent) {
  if (detail::is_readable(absent) && !absent.any().item<bool>()) {
    return token_scores(x, codebook, metric);
  }
  const auto rows = absent.unsqueeze(-1);
  return token_scores(x.masked_fill(rows, 0), codebook.masked_fill(rows.unsqueeze(-1), 0), metric);
}

/// The probabilities (H, T, K) of each token's own codes: zeros for tokens that do not count.
at::Tensor token_probabilities(const at::Tensor& x, const at::Tensor& codebook, double temperature,
                               const std::string& metric, const at::Tensor& counted) {
  const auto absent = counted.logical_not();
  const auto scores = present_scores(x, codebook, metric, absent);
  return scores.mul(temperature).softmax(-1).masked_fill(absent.unsqueeze(-1), 0);
}

/// sum_k P_k log(P_k) over the last axis: 0 for P_k = 0, and finite gradients.
at::Tensor negative_entropy(const at::Tensor& probability) {
  const double tiny = probability.scalar_type() == at::kDouble
                          ? std::numeric_limits<double>::min()
                          : static_cast<double>(std::numeric_limits<float>::min());
  return probability.mul(probability.clamp_min(tiny).log()).sum(-1);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> nearest_token_code(const at::Tensor& x,
                                                      const at::Tensor& codebook,
                                                      const std::string& metric,
                                                      std::optional<int64_t> topk) {
  check_token_codes(x, codebook);
  const bool cosine = metric == "cosine";
  const auto codes = searched_codes(codebook, x.scalar_type(), cosine);
  const auto indices =
      nearest_indices(cosine ? ops::unit_vectors(x) : x, codes, cosine, topk.value_or(1));
  return codes_at(codes, indices, topk);
}

std::tuple<at::Tensor, at::Tensor> sampled_token_code(const at::Tensor& x,
                                                      const at::Tensor& codebook,
                                                      const at::Tensor& rng, double temperature,
                                                      const std::string& metric,
                                                      std::optional<int64_t> topk) {
  check_token_codes(x, codebook);
  const auto codes = searched_codes(codebook, x.scalar_type(), metric == "cosine");
  const auto drawn =
      ops::sample_codes(one_token_heads(x.detach()), one_token_codebooks(codes.detach()), rng,
                        temperature, metric, /*stream=*/0, topk.value_or(1));
  return codes_at(codes, drawn.view_symint({x.sym_size(0), x.sym_size(1), drawn.sym_size(2)}),
                  topk);
}

at::Tensor token_scores(const at::Tensor& x, const at::Tensor& codebook,
                        const std::string& metric) {
  const auto codes = searched_codes(codebook, x.scalar_type(), metric == "cosine");
  if (metric == "cosine") {
    return codes.matmul(ops::unit_vectors(x).unsqueeze(-1)).squeeze(-1);
  }
  return x.unsqueeze(2).sub(codes).norm(2, -1).neg();
}

at::Tensor token_cross_entropy(const at::Tensor& x, const at::Tensor& codebook,
                               const at::Tensor& targets, const std::string& metric,
                               const std::optional<at::Tensor>& mask) {
  auto counted = targets.ge(0);
  if (mask) counted = counted.logical_and(*mask);
  const auto absent = counted.logical_not();
  const auto likelihood = present_scores(x, codebook, metric, absent).log_softmax(-1);
  const auto wanted = likelihood.gather(-1, targets.clamp_min(0).unsqueeze(-1)).squeeze(-1);
  return wanted.masked_fill(absent, 0).sum().neg().div(counted.sum().clamp_min(1));
}

at::Tensor token_diversity_totals(const at::Tensor& x, const at::Tensor& codebook,
                                  double temperature, const std::string& metric,
                                  const std::optional<at::Tensor>& mask) {
  const auto counted = detail::usable_rows(x, mask);
  const auto sums = token_probabilities(x, codebook, temperature, metric, counted).sum(1);
  const auto tokens = counted.sum(1, /*keepdim=*/true);
  return at::cat({sums, tokens.to(sums.scalar_type()), at::ones_like(tokens, sums.options())}, -1);
}

at::Tensor token_diversity_loss(const at::Tensor& x, const at::Tensor& codebook, double temperature,
                                const std::string& metric, const std::optional<at::Tensor>& mask,
                                const std::optional<at::Tensor>& totals) {
  const auto own = token_diversity_totals(x, codebook, temperature, metric, mask);
  // The values of all ranks, with the gradient of this rank's tokens.
  const auto all = totals ? totals->to(own.scalar_type()).add(own.sub(own.detach())) : own;
  const auto sums = all.narrow_symint(1, 0, all.sym_size(1) - 2);
  const auto count = all.select(1, -2).detach(), ranks = all.select(1, -1).detach();
  const auto entropy = negative_entropy(sums.div(count.clamp_min(1).unsqueeze(-1)));
  // Data-parallel wrappers divide the gradient by the number of ranks.
  const auto value = entropy.detach();
  return value.add(entropy.sub(value).mul(ranks)).mean();
}

}  // namespace torchvq::functional
