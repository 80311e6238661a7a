#include <torchvq/functional/codebook.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <torchvq/ops/kmeans.h>

#include "detail/checks.h"

namespace torchvq::functional {
namespace {

constexpr double kMinVariance = 1e-5;

/// Moves `state` to `value` where `condition` () holds.
void assign_where_(at::Tensor& state, const at::Tensor& condition, const at::Tensor& value) {
  state.copy_(at::where(condition, value.to(state.scalar_type()), state));
}

at::Tensor standard_deviation(const at::Tensor& variance) {
  return variance.clamp_min(kMinVariance).sqrt();
}

/// Which rows of x count: finite and not masked. (H, T, 1).
at::Tensor counted_rows(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  const auto finite = x.isfinite().all(-1, /*keepdim=*/true);
  return mask ? finite.logical_and(mask->unsqueeze(-1)) : finite;
}

/// A running average whose first value is the value itself.
void average_(at::Tensor& state, at::Tensor& needs_init, const at::Tensor& value,
              const at::Tensor& any, double decay) {
  const auto current = value.to(state.scalar_type());
  const auto next = at::where(needs_init, current, state.mul(decay).add(current.mul(1 - decay)));
  assign_where_(state, any, next);
  needs_init.logical_and_(any.logical_not());
}

}  // namespace

void initialise_codebook_(at::Tensor initted, at::Tensor cluster_size, at::Tensor embed_avg,
                          at::Tensor embed, const at::Tensor& x, const at::Tensor& rng,
                          const std::optional<at::Tensor>& mask,
                          const InitialiseCodebookOptions& options) {
  at::NoGradGuard no_grad;
  const auto [centres, counts] =
      ops::kmeans(x, embed.size(1), rng, options.iterations(), options.metric(), mask);
  const auto any = counts.sum().gt(0);
  const auto size = counts.to(cluster_size.scalar_type());
  assign_where_(embed, any, centres);
  assign_where_(embed_avg, any, centres.to(embed_avg.scalar_type()).mul(size.unsqueeze(-1)));
  assign_where_(cluster_size, any, size);
  initted.logical_or_(any);
}

at::Tensor affine_codes(const at::Tensor& embed, const at::Tensor& batch_mean,
                        const at::Tensor& batch_variance, const at::Tensor& codebook_mean,
                        const at::Tensor& codebook_variance) {
  const auto scale = standard_deviation(batch_variance).div(standard_deviation(codebook_variance));
  return embed.sub(codebook_mean).mul(scale).add(batch_mean);
}

at::Tensor affine_inputs(const at::Tensor& x, const at::Tensor& batch_mean,
                         const at::Tensor& batch_variance, const at::Tensor& codebook_mean,
                         const at::Tensor& codebook_variance) {
  return affine_codes(x, codebook_mean, codebook_variance, batch_mean, batch_variance);
}

void update_affine_(at::Tensor mean, at::Tensor variance, at::Tensor mean_needs_init,
                    at::Tensor variance_needs_init, const at::Tensor& x,
                    const std::optional<at::Tensor>& mask, double decay) {
  at::NoGradGuard no_grad;
  const auto rows = counted_rows(x, mask);
  const auto count = rows.sum(1, /*keepdim=*/true);
  const auto any = count.gt(0).all();
  // float64, so that sums over many tokens do not depend on how they are split.
  const auto values = x.to(at::kDouble).masked_fill(rows.logical_not(), 0);
  const auto divisor = count.clamp_min(1);
  const auto batch_mean = values.sum(1, /*keepdim=*/true).div(divisor);
  const auto spread = values.sub(batch_mean).masked_fill(rows.logical_not(), 0);
  const auto batch_variance = spread.square().sum(1, /*keepdim=*/true).div(divisor);
  average_(mean, mean_needs_init, batch_mean, any, decay);
  average_(variance, variance_needs_init, batch_variance, any, decay);
}

at::Tensor has_tokens(const at::Tensor& x, const std::optional<at::Tensor>& mask) {
  return counted_rows(x, mask).squeeze(-1).any(1, /*keepdim=*/true);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> merge_statistics(
    const at::Tensor& counts_a, const at::Tensor& sums_a, const at::Tensor& exponents_a,
    const at::Tensor& counts_b, const at::Tensor& sums_b, const at::Tensor& exponents_b) {
  const auto exponents = exponents_a.maximum(exponents_b);
  const auto rescaled = [&](const at::Tensor& sums, const at::Tensor& own) {
    return sums.bitwise_right_shift(exponents.sub(own).to(at::kLong).unsqueeze(-1).clamp_max(63));
  };
  return {counts_a.add(counts_b), rescaled(sums_a, exponents_a).add(rescaled(sums_b, exponents_b)),
          exponents};
}

void advance_rng_(at::Tensor rng, const std::optional<at::Tensor>& mask) {
  at::NoGradGuard no_grad;
  auto step = rng.select(0, 1);
  if (mask) {
    step.add_(mask->any().to(at::kLong));
  } else {
    step.add_(1);
  }
}

}  // namespace torchvq::functional

namespace {

void initialise_codebook_op(at::Tensor initted, at::Tensor cluster_size, at::Tensor embed_avg,
                            at::Tensor embed, const at::Tensor& x, const at::Tensor& rng,
                            const std::optional<at::Tensor>& mask, int64_t iterations,
                            std::string_view metric) {
  torchvq::functional::initialise_codebook_(initted, cluster_size, embed_avg, embed, x, rng, mask,
                                            torchvq::functional::InitialiseCodebookOptions()
                                                .iterations(iterations)
                                                .metric(std::string(metric)));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  using namespace torchvq::functional;
  m.def(
      "initialise_codebook_(Tensor(a!) initted, Tensor(b!) cluster_size, Tensor(c!) embed_avg, "
      "Tensor(d!) embed, "
      "Tensor x, Tensor rng, *, Tensor? mask=None, int iterations=10, str metric='euclidean') -> "
      "()",
      initialise_codebook_op);
  m.def(
      "affine_codes(Tensor embed, Tensor batch_mean, Tensor batch_variance, Tensor codebook_mean, "
      "Tensor codebook_variance) -> Tensor",
      TORCH_FN(affine_codes));
  m.def(
      "affine_inputs(Tensor x, Tensor batch_mean, Tensor batch_variance, Tensor codebook_mean, "
      "Tensor codebook_variance) -> Tensor",
      TORCH_FN(affine_inputs));
  m.def(
      "update_affine_(Tensor(a!) mean, Tensor(b!) variance, Tensor(c!) mean_needs_init, "
      "Tensor(d!) variance_needs_init, Tensor x, *, Tensor? mask=None, float decay) -> ()",
      TORCH_FN(update_affine_));
  m.def("has_tokens(Tensor x, Tensor? mask=None) -> Tensor", TORCH_FN(has_tokens));
  m.def(
      "merge_statistics(Tensor counts_a, Tensor sums_a, Tensor exponents_a, Tensor counts_b, "
      "Tensor sums_b, "
      "Tensor exponents_b) -> (Tensor counts, Tensor sums, Tensor exponents)",
      TORCH_FN(merge_statistics));
  m.def("advance_rng_(Tensor(a!) rng, Tensor? mask=None) -> ()", TORCH_FN(advance_rng_));
}
