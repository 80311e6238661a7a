#include <torchvq/functional/lookup_free_quantize.h>

#include <algorithm>
#include <tuple>

#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>

#include <torchvq/distributed/all_reduce.h>
#include <torchvq/distributed/noise_rng.h>
#include <torchvq/functional/quantize_scalars.h>
#include <torchvq/functional/rotate_features.h>
#include <torchvq/functional/vqp_compat.h>
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/sample_token_mask.h>
#include <torchvq/ops/sign_entropy.h>
#include <torchvq/ops/sign_quantize.h>
#include <torchvq/ops/sign_step.h>
#include <torchvq/ops/straight_through.h>

#include "detail/token_checks.h"
#include "functional/lookup_free_rows.h"
#include "ops/unit_vectors.h"

namespace torchvq::functional {
namespace {

TokenLayout sign_layout(const LookupFreeOptions& options) {
  return TokenLayout()
      .heads(options.codebooks())
      .separate(true)
      .channel_first(options.channel_first());
}

/// Factor between a latent and the logit of its bit: the bit's two codes are twice the scale apart,
/// and the distance to each is squared.
double sharpness_of(const LookupFreeOptions& options) {
  detail::check_non_negative("LFQ", "inv_temperature", options.inv_temperature());
  return 4 * options.inv_temperature() * options.scale();
}

/// Rows (C, T, D) clamped, projected to the sphere and rotated, as the options say.
at::Tensor latents_of(const at::Tensor& rows, const LookupFreeArguments& arguments,
                      const LookupFreeOptions& options) {
  auto latents = rows;
  if (const auto& limit = options.soft_clamp()) {
    latents = soft_clamp(latents, at::scalar_tensor(*limit, latents.options()));
  }
  if (const auto& radius = options.radius()) latents = on_sphere(latents, *radius);
  return arguments.rotation ? rotate_features(latents, *arguments.rotation) : latents;
}

}  // namespace

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

std::optional<at::Tensor> absent_where(const LookupFreeArguments& arguments,
                                       const LookupFreeOptions& options) {
  return options.vqp_compat() ? std::nullopt : arguments.mask;
}

bool steps_at_once(const LookupFreeOptions& options) {
  return options.scores() && !options.vqp_compat() && !options.weights().softplus_offset;
}

ops::SignStepOptions sign_step_options(const LookupFreeOptions& options) {
  const auto& weights = options.weights();
  return {options.scale(),
          sharpness_of(options),
          {weights.entropy, weights.diversity_gamma, std::max(weights.commitment, 0.0)}};
}

LookupFreeSigns masks_of(const LookupFreeArguments& arguments, const LookupFreeOptions& options,
                         const at::Tensor& latents) {
  LookupFreeSigns signs;
  if (arguments.mask) {
    signs.mask = split_mask(*arguments.mask, options.codebooks(), /*separate=*/true);
  }
  signs.entropy_mask = signs.mask;
  if (arguments.rng) {
    signs.entropy_mask =
        ops::sample_token_mask(distributed::noise_rng(*arguments.rng, options.ranks()),
                               latents.sym_size(1), options.fraction(), signs.mask);
  }
  return signs;
}

namespace {

/// Signs, losses and quantized latents of a training step.
at::Tensor step_at_once(LookupFreeStep& step, const LookupFreeOptions& options) {
  auto& signs = step.signs;
  auto found = ops::sign_step(signs.latents, sign_step_options(options), signs.mask,
                              signs.entropy_mask, step.totals);
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

LookupFreeStep quantize_rows(const at::Tensor& rows, const LookupFreeArguments& arguments,
                             const LookupFreeOptions& options,
                             const std::optional<at::Tensor>& totals) {
  LookupFreeStep step;
  auto& signs = step.signs;
  const auto latents = latents_of(rows, arguments, options);
  signs = masks_of(arguments, options, latents);
  signs.latents = latents;
  step.totals = totals;
  if (options.scores() && !options.ranks().group_name.empty() && !totals) {
    step.totals =
        distributed::all_reduce_statistics(lookup_free_totals(signs, options), options.ranks());
  }
  const bool activates = options.estimates() && arguments.activation;
  auto how = options;
  how.estimates(options.estimates() && !activates);
  auto codes = steps_at_once(how) ? step_at_once(step, how) : step_by_step(step, how);
  if (activates) codes = ops::straight_through(arguments.activation(signs.latents), signs.codes);
  const auto& rotation = arguments.rotation;
  step.quantized = rotation ? rotate_features(codes, *rotation, /*inverse=*/true) : codes;
  step.indices = signs.indices;
  return step;
}

LookupFreeStep lookup_free_quantize(const at::Tensor& x, const LookupFreeArguments& arguments,
                                    const LookupFreeOptions& options,
                                    const std::optional<at::Tensor>& totals) {
  const auto layout = sign_layout(options);
  const auto absent = absent_where(arguments, options);
  auto tokens = pack_tokens(x, options.channel_first());
  if (absent) tokens = fill_masked(tokens, *absent);
  // The map from projection to latents, and the losses, use float32 arithmetic.
  tokens = tokens.to(detail::compute_dtype(tokens));
  auto step = quantize_rows(split_heads(tokens, layout.heads(), layout.separate()), arguments,
                            options, totals);
  step.quantized = restore_tokens(step.quantized, x, absent, layout);
  const auto& mask = step.signs.mask;
  const auto indices =
      absent && mask ? step.indices.masked_fill(mask->logical_not(), -1) : step.indices;
  step.indices = restore_positions(indices, x, layout);
  return step;
}

}  // namespace torchvq::functional
