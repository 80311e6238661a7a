// Any device: calls the three operators that it combines.
#include "ops/ema_update_tokens_.h"

#include <string>
#include <vector>

#include <torch/library.h>

#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/ema_update_.h>

namespace torchvq {
namespace {

void ema_update_tokens_(at::TensorList cluster_size, at::TensorList embed_avg, at::TensorList embed,
                        at::TensorList counts, at::TensorList x, at::TensorList indices,
                        at::TensorList mask, double decay, double eps, std::string_view metric,
                        const std::optional<at::Tensor>& weight, bool from_codebook, bool finish) {
  const detail::EmaUpdateTokensArguments arguments{
      cluster_size, embed_avg, embed, counts, x, indices, mask, decay, eps, metric, weight};
  detail::check_ema_update_tokens_(arguments);
  std::vector<std::tuple<at::Tensor, at::Tensor, at::Tensor>> statistics;
  for (size_t i = 0; i < embed.size(); ++i) {
    statistics.push_back(ops::code_statistics(x[i], indices[i], ops::code_exponents(embed[i]),
                                              arguments.mask_of(i)));
  }
  for (size_t i = 0; i < embed.size(); ++i) {
    const auto& [hits, sums, exponents] = statistics[i];
    ops::ema_update_(cluster_size[i], embed_avg[i], embed[i], hits, sums, exponents,
                     {decay, eps, std::string(metric), weight, from_codebook, finish});
    counts[i].copy_(hits);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("ema_update_tokens_", ema_update_tokens_);
}

}  // namespace torchvq
