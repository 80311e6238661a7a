// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/sample_codes.h"

#include <optional>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include "detail/ordered_sum.h"
#include "detail/random_tensor.h"
#include "ops/any/score_blocks.h"

namespace torchvq {
namespace {

/// The indices (n, count) of the largest chances (n, K), the lower one on ties; 0 .. count - 1 where
/// `none` (n, 1).
at::Tensor best_chances(const at::Tensor& chances, const at::Tensor& none, int64_t count) {
  if (count == 1) return chances.argmax(-1, /*keepdim=*/true).masked_fill_(none, 0);
  const std::optional<bool> stable = true;
  const auto order = std::get<1>(chances.sort(stable, -1, /*descending=*/true));
  const auto first = at::arange(count, order.options());
  return at::where(none, first, order.narrow(-1, 0, count));
}

at::Tensor sample_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                        double temperature, c10::string_view metric_name, int64_t stream,
                        std::optional<int64_t> topk) {
  const auto metric = detail::check_sample_codes(x, codebook, rng, temperature, metric_name, topk);
  // The first of equal scores must win on every device, and only the search guarantees this.
  if (temperature < detail::kColdestDraw) return detail::nearest_codes(x, codebook, metric, topk);
  const auto key =
      detail::random_key(rng, static_cast<int64_t>(RandomPurpose::kCodeSampling), stream);
  return detail::choose_by_score(
      x, codebook, metric, topk, detail::own_code_scores,
      [&](const at::Tensor& scores, int64_t position) {
        const auto best = scores.amax(-1, /*keepdim=*/true);
        const auto positions = at::arange(position, position + scores.numel(), rng.options());
        const auto u = detail::uniform_from_bits(detail::random_bits(key, positions), 53);
        const auto waiting = detail::log_of_uniform(u).neg_().view(scores.sizes());
        const auto lag = detail::divided(scores - best, temperature);
        const auto chances =
            at::where(lag.ge(detail::kFarLag), lag.exp().div_(waiting), lag - waiting.log());
        return best_chances(chances, best.isfinite().logical_not_(), topk.value_or(1));
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("sample_codes", sample_codes); }

}  // namespace torchvq
