// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/sample_codes.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <torch/library.h>

#include "detail/ordered_sum.h"
#include "detail/random_tensor.h"
#include "ops/any/score_blocks.h"

namespace torchvq {
namespace {

at::Tensor sample_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                        double temperature, c10::string_view metric_name, int64_t stream) {
  const auto metric = detail::check_sample_codes(x, codebook, rng, temperature, metric_name);
  // The first of equal scores must win on every device, and only the search guarantees this.
  if (temperature == 0) return detail::nearest_codes(x, codebook, metric);
  const auto key =
      detail::random_key(rng, static_cast<int64_t>(RandomPurpose::kCodeSampling), stream);
  return detail::choose_by_score(
      x, codebook, metric, [&](const at::Tensor& scores, int64_t position) {
        const auto best = scores.amax(-1, /*keepdim=*/true);
        const auto positions = at::arange(position, position + scores.numel(), rng.options());
        const auto u = detail::uniform_from_bits(detail::random_bits(key, positions), 53);
        const auto waiting = detail::log_of_uniform(u).neg_().view(scores.sizes());
        const auto chances = detail::divided(scores - best, temperature).exp_().div_(waiting);
        return chances.argmax(-1).masked_fill_(best.isfinite().logical_not_().squeeze(-1), 0);
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("sample_codes", sample_codes); }

}  // namespace torchvq
