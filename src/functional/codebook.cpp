#include <torchvq/functional/codebook.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <torch/library.h>

#include <torchvq/distributed/synced_code_statistics.h>
#include <torchvq/distributed/synced_kmeans.h>
#include <torchvq/functional/vqp_compat.h>
#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/decode_sums.h>

#include "detail/checks.h"
#include "detail/codebook_average.h"
#include "detail/precision.h"
#include "detail/row_keys.h"
#include "distributed/two_words.h"
#include "functional/affine_scale.h"
#include "functional/step_checks.h"

namespace torchvq::functional {
namespace {

constexpr double kMinVariance = 1e-5;

/// Sets `state` to `value` where `condition` () holds.
void assign_where_(at::Tensor& state, const at::Tensor& condition, const at::Tensor& value) {
  state.copy_(at::where(condition, value.to(state.scalar_type()), state));
}

at::Tensor standard_deviation(const at::Tensor& variance) {
  return variance.clamp_min(kMinVariance).sqrt();
}

/// Exact sums of `rows`, over all ranks if there is a group; row i counts if nowhere[i] is 0.
/// Without a group, no operator is called that could wait for others (ops/capture.h).
distributed::SyncedStatistics sums_of_rows(at::TensorList rows, const at::Tensor& nowhere,
                                           const std::vector<at::Tensor>& exponents,
                                           const std::vector<at::Tensor>& state,
                                           const distributed::SyncOptions& sync) {
  distributed::SyncedStatistics found;
  if (sync.group_name.empty()) {
    for (size_t i = 0; i < rows.size(); ++i) {
      auto [counts, sums, grown] = ops::code_statistics(rows[i], nowhere, exponents[i]);
      found.counts.push_back(std::move(counts));
      found.sums.push_back(std::move(sums));
      found.exponents.push_back(std::move(grown));
    }
    return found;
  }
  distributed::SyncedStatisticsOptions options;
  options.group_name = sync.group_name;
  options.label = sync.label;
  options.signature = "affine statistics";
  options.state = state;
  return distributed::synced_code_statistics(rows, {nowhere, nowhere}, exponents, options);
}

/// Updates a moving average that starts with its first value.
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
  constexpr auto op = "initialise_codebook_";
  detail::check_dtype(op, "initted", initted, at::kBool);
  check_averages(op, cluster_size, embed_avg, embed);
  detail::check_rank(op, "x", x, 3, "(H, N, D)");
  detail::check_size(op, "x", x, 2, embed.sym_size(2), "dimensions of embed");
  at::NoGradGuard no_grad;
  distributed::SyncedKmeansOptions kmeans;
  kmeans.group_name = options.group_name();
  kmeans.label = options.label();
  kmeans.iterations = options.iterations();
  kmeans.metric = options.metric();
  kmeans.mask = mask;
  const bool compat = options.vqp_compat() && options.group_name().empty();
  auto [found, counts] =
      compat ? vqp_kmeans(x, embed.size(1), rng, mask, options.iterations(), options.metric())
             : distributed::synced_kmeans(x, embed.size(1), rng, kmeans);
  if (compat) found = found.mul(counts.gt(0).unsqueeze(-1));
  const auto any = counts.sum().gt(0);
  const auto size = counts.to(cluster_size.scalar_type());
  const auto centres = detail::narrowed(found, embed.scalar_type());
  assign_where_(embed, any, centres);
  const double most = detail::largest(embed_avg.scalar_type());
  const auto sums = centres.to(embed_avg.scalar_type()).mul(size.unsqueeze(-1));
  assign_where_(embed_avg, any, sums.clamp(-most, most));
  assign_where_(cluster_size, any, size);
  initted.logical_or_(any);
}

at::Tensor affine_scale(const at::Tensor& batch_variance, const at::Tensor& codebook_variance) {
  return standard_deviation(batch_variance).div(standard_deviation(codebook_variance));
}

at::Tensor affine_codes(const at::Tensor& embed, const at::Tensor& batch_mean,
                        const at::Tensor& batch_variance, const at::Tensor& codebook_mean,
                        const at::Tensor& codebook_variance) {
  constexpr auto op = "affine_codes";
  detail::check_defined(op, "embed", embed);
  detail::check_defined(op, "batch_mean", batch_mean);
  detail::check_defined(op, "batch_variance", batch_variance);
  detail::check_defined(op, "codebook_mean", codebook_mean);
  detail::check_defined(op, "codebook_variance", codebook_variance);
  return embed.sub(codebook_mean)
      .mul(affine_scale(batch_variance, codebook_variance))
      .add(batch_mean);
}

at::Tensor affine_inputs(const at::Tensor& x, const at::Tensor& batch_mean,
                         const at::Tensor& batch_variance, const at::Tensor& codebook_mean,
                         const at::Tensor& codebook_variance) {
  // The inverse map.  NOLINTNEXTLINE(readability-suspicious-call-argument)
  return affine_codes(x, codebook_mean, codebook_variance, batch_mean, batch_variance);
}

at::Tensor update_affine_(at::Tensor mean, at::Tensor variance, at::Tensor mean_needs_init,
                          at::Tensor variance_needs_init, const at::Tensor& x,
                          const std::optional<at::Tensor>& mask, double decay,
                          const distributed::SyncOptions& sync) {
  at::NoGradGuard no_grad;
  // Rows of all ranks are summed exactly, as if they were the tokens of one code. Subtracting the
  // running mean keeps the one-pass variance accurate for data far from the origin. Until the first
  // step mean and variance count as 0 and 1, whatever they hold: those of a fresh checkpoint of the
  // reference are uninitialised memory.
  const auto centre = mean.masked_fill(mean_needs_init, 0).to(at::kDouble);
  const auto offset = x.to(at::kDouble).sub(centre);
  const auto nowhere = detail::usable_rows(x, mask).logical_not().to(at::kLong).neg();
  const auto squares = offset.square();
  const auto spread = variance.masked_fill(variance_needs_init, 1).to(at::kDouble).clamp_min(0);
  const auto [counts, sums, exponents] = sums_of_rows(
      {offset, squares}, nowhere, {ops::code_exponents(spread.sqrt()), ops::code_exponents(spread)},
      {mean, variance, mean_needs_init, variance_needs_init}, sync);
  const auto divisor = counts[0].clamp_min(1).unsqueeze(-1);
  const auto shift = ops::decode_sums(sums[0], exponents[0], at::kDouble).div(divisor);
  const auto second = ops::decode_sums(sums[1], exponents[1], at::kDouble).div(divisor);
  const auto any = counts[0].gt(0).all();
  // Values beyond the range of the state are clamped.
  const double most = detail::largest(mean.scalar_type());
  average_(mean, mean_needs_init, centre.add(shift).clamp(-most, most), any, decay);
  average_(variance, variance_needs_init, second.sub(shift.square()).clamp(0, most), any, decay);
  return counts[0];
}

at::Tensor averages_of_codes(const at::Tensor& embed, const at::Tensor& cluster_size, double eps) {
  at::NoGradGuard no_grad;
  const auto sizes = detail::smoothed_sizes(cluster_size.detach(), eps);
  const auto averages = embed.detach().to(at::kDouble).mul(sizes.unsqueeze(-1));
  const double most = detail::largest(cluster_size.scalar_type());
  return averages.clamp(-most, most).to(cluster_size.scalar_type());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> merge_statistics(
    const at::Tensor& counts_a, const at::Tensor& sums_a, const at::Tensor& exponents_a,
    const at::Tensor& counts_b, const at::Tensor& sums_b, const at::Tensor& exponents_b) {
  constexpr auto op = "merge_statistics";
  detail::check_defined(op, "counts_a", counts_a);
  detail::check_defined(op, "sums_a", sums_a);
  detail::check_defined(op, "exponents_a", exponents_a);
  detail::check_defined(op, "counts_b", counts_b);
  detail::check_defined(op, "sums_b", sums_b);
  detail::check_defined(op, "exponents_b", exponents_b);
  const auto exponents = exponents_a.maximum(exponents_b);
  const auto rescaled = [&](const at::Tensor& sums, const at::Tensor& own) {
    const auto shift = exponents.sub(own).to(at::kLong);
    // With two words, bits shifted out of the first move into the second.
    if (sums.sym_size(0) == 2) return distributed::shifted_words(sums, shift);
    return sums.bitwise_right_shift(shift.unsqueeze(-1).clamp_max(63));
  };
  return {counts_a.add(counts_b), rescaled(sums_a, exponents_a).add(rescaled(sums_b, exponents_b)),
          exponents};
}

}  // namespace torchvq::functional

namespace {

void initialise_codebook_op(at::Tensor initted, at::Tensor cluster_size, at::Tensor embed_avg,
                            at::Tensor embed, const at::Tensor& x, const at::Tensor& rng,
                            const std::optional<at::Tensor>& mask, int64_t iterations,
                            std::string_view metric, std::string_view group_name,
                            std::string_view label, bool vqp_compat) {
  torchvq::functional::initialise_codebook_(initted, cluster_size, embed_avg, embed, x, rng, mask,
                                            torchvq::functional::InitialiseCodebookOptions()
                                                .iterations(iterations)
                                                .metric(std::string(metric))
                                                .group_name(std::string(group_name))
                                                .label(std::string(label))
                                                .vqp_compat(vqp_compat));
}

at::Tensor update_affine_op(at::Tensor mean, at::Tensor variance, at::Tensor mean_needs_init,
                            at::Tensor variance_needs_init, const at::Tensor& x,
                            const std::optional<at::Tensor>& mask, double decay,
                            std::string_view group_name, std::string_view label) {
  return torchvq::functional::update_affine_(mean, variance, mean_needs_init, variance_needs_init,
                                             x, mask, decay,
                                             {std::string(group_name), std::string(label)});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  using namespace torchvq::functional;
  m.def(
      "initialise_codebook_(Tensor(a!) initted, Tensor(b!) cluster_size, Tensor(c!) embed_avg, "
      "Tensor(d!) embed, "
      "Tensor x, Tensor rng, *, Tensor? mask=None, int iterations=10, str metric='euclidean', str "
      "group_name='', "
      "str label='quantizer', bool vqp_compat=False) -> ()",
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
      "Tensor(d!) variance_needs_init, Tensor x, *, Tensor? mask=None, float decay, str "
      "group_name='', "
      "str label='quantizer') -> Tensor tokens",
      update_affine_op);
  m.def("averages_of_codes(Tensor embed, Tensor cluster_size, *, float eps=1e-5) -> Tensor",
        TORCH_FN(averages_of_codes));
  m.def(
      "merge_statistics(Tensor counts_a, Tensor sums_a, Tensor exponents_a, Tensor counts_b, "
      "Tensor sums_b, "
      "Tensor exponents_b) -> (Tensor counts, Tensor sums, Tensor exponents)",
      TORCH_FN(merge_statistics));
}
