#include <torchvq/functional/lookup_free_quantize.h>

#include <algorithm>
#include <tuple>

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

#include <torchvq/distributed/all_reduce.h>
#include <torchvq/functional/quantize_scalars.h>
#include <torchvq/functional/rotate_features.h>
#include <torchvq/functional/vector_quantize.h>
#include <torchvq/functional/vqp_compat.h>
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/sample_token_mask.h>
#include <torchvq/ops/sign_entropy.h>
#include <torchvq/ops/sign_quantize.h>
#include <torchvq/ops/sign_step.h>
#include <torchvq/ops/straight_through.h>

#include "detail/token_checks.h"
#include "ops/unit_vectors.h"

namespace torchvq::functional {
namespace {

TokenLayout sign_layout(const LookupFreeOptions& options) {
  return TokenLayout()
      .heads(options.codebooks())
      .separate(true)
      .channel_first(options.channel_first());
}

/// The tokens that are absent from outputs and indices. The reference quantizes padding as well.
std::optional<at::Tensor> absent_where(const LookupFreeArguments& arguments,
                                       const LookupFreeOptions& options) {
  return options.vqp_compat() ? std::nullopt : arguments.mask;
}

/// Factor between a latent and the logit of its bit: the bit's two codes are twice the scale apart,
/// and the distance to each is squared.
double sharpness_of(const LookupFreeOptions& options) {
  detail::check_non_negative("LFQ", "inv_temperature", options.inv_temperature());
  return 4 * options.inv_temperature() * options.scale();
}

/// x as (C, T, D), with padding set to zero, since it may hold anything, including NaN.
at::Tensor latents_of(const at::Tensor& x, const LookupFreeArguments& arguments,
                      const LookupFreeOptions& options) {
  auto tokens = pack_tokens(x, options.channel_first());
  if (const auto absent = absent_where(arguments, options)) tokens = fill_masked(tokens, *absent);
  // The map from projection to latents, and the losses, use float32 arithmetic.
  tokens = tokens.to(detail::compute_dtype(tokens));
  if (const auto limit = options.soft_clamp()) {
    tokens = soft_clamp(tokens, at::scalar_tensor(*limit, tokens.options()));
  }
  auto latents = split_heads(tokens, options.codebooks(), /*separate=*/true);
  if (options.radius()) latents = on_sphere(latents, *options.radius());
  return arguments.rotation ? rotate_features(latents, *arguments.rotation) : latents;
}

}  // namespace

at::Tensor lookup_free_output(const at::Tensor& codes, const at::Tensor& x,
                              const LookupFreeArguments& arguments,
                              const LookupFreeOptions& options) {
  const auto back =
      arguments.rotation ? rotate_features(codes, *arguments.rotation, /*inverse=*/true) : codes;
  return restore_tokens(back, x, absent_where(arguments, options), sign_layout(options));
}

at::Tensor lookup_free_totals(const LookupFreeSigns& signs, const LookupFreeOptions& options) {
  return ops::sign_entropy_totals(signs.latents.detach(), sharpness_of(options),
                                  signs.entropy_mask);
}

LookupFreeLosses lookup_free_losses(const LookupFreeSigns& signs,
                                    const std::optional<at::Tensor>& totals,
                                    const LookupFreeOptions& options) {
  const auto zero = signs.latents.new_zeros({});
  LookupFreeLosses losses{zero, zero, zero, zero};
  if (!options.scores()) return losses;
  std::tie(losses.per_sample_entropy, losses.batch_entropy) =
      options.vqp_compat()
          ? vqp_sign_entropy(signs.latents, sharpness_of(options), signs.entropy_mask,
                             signs.mask.has_value())
          : ops::sign_entropy(signs.latents, sharpness_of(options), signs.entropy_mask, totals);
  if (options.weights().commitment > 0) {
    losses.commitment = ops::commitment_loss(signs.latents, signs.codes, signs.mask);
  }
  losses.loss = lookup_free_loss(losses.per_sample_entropy, losses.batch_entropy, losses.commitment,
                                 options.weights());
  return losses;
}

namespace {

/// Whether one operator can compute signs and losses: not with the reference's order of operations,
/// and not if a function is applied between terms and loss.
bool steps_at_once(const LookupFreeOptions& options) {
  return options.scores() && !options.vqp_compat() && !options.weights().softplus_offset;
}

/// Signs, losses and quantized latents of a training step.
at::Tensor step_at_once(LookupFreeStep& step, const LookupFreeOptions& options) {
  auto& signs = step.signs;
  const auto& weights = options.weights();
  auto found = ops::sign_step(
      signs.latents,
      {options.scale(),
       sharpness_of(options),
       {weights.entropy, weights.diversity_gamma, std::max(weights.commitment, 0.0)}},
      signs.mask, signs.entropy_mask, step.totals);
  signs.codes = found.codes.detach();
  signs.indices = found.indices;
  step.losses = {found.loss, found.per_sample, found.batch, found.commitment};
  return options.estimates() ? found.codes : signs.codes;
}

/// The same with one operator after the other.
at::Tensor step_by_step(LookupFreeStep& step, const LookupFreeOptions& options) {
  auto& signs = step.signs;
  std::tie(signs.codes, signs.indices) = ops::sign_quantize(signs.latents, options.scale());
  step.losses = lookup_free_losses(signs, step.totals, options);
  return options.estimates() ? ops::straight_through(signs.latents, signs.codes) : signs.codes;
}

}  // namespace

LookupFreeStep lookup_free_quantize(const at::Tensor& x, const LookupFreeArguments& arguments,
                                    const LookupFreeOptions& options,
                                    const std::optional<at::Tensor>& totals) {
  const auto layout = sign_layout(options);
  LookupFreeStep step;
  auto& signs = step.signs;
  signs.latents = latents_of(x, arguments, options);
  if (arguments.mask) {
    signs.mask = split_mask(*arguments.mask, layout.heads(), layout.separate());
  }
  signs.entropy_mask = signs.mask;
  if (arguments.rng) {
    signs.entropy_mask =
        ops::sample_token_mask(noise_rng(*arguments.rng, options.ranks()),
                               signs.latents.sym_size(1), options.fraction(), signs.mask);
  }
  step.totals = totals;
  if (options.scores() && !options.ranks().group_name.empty() && !totals) {
    step.totals =
        distributed::all_reduce_statistics(lookup_free_totals(signs, options), options.ranks());
  }
  const auto codes =
      steps_at_once(options) ? step_at_once(step, options) : step_by_step(step, options);
  step.quantized = lookup_free_output(codes, x, arguments, options);
  const auto indices = absent_where(arguments, options) && signs.mask
                           ? signs.indices.masked_fill(signs.mask->logical_not(), -1)
                           : signs.indices;
  step.indices = restore_positions(indices, x, layout);
  return step;
}

}  // namespace torchvq::functional
