#include <torchvq/options/vector_quantize.h>

#include <cmath>
#include <utility>

#include <c10/util/Exception.h>

#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_vector_quantize{"VectorQuantize"};

void exclude(bool both, const char* pair) {
  TORCH_CHECK_VALUE(!both, "VectorQuantize: expected at most one of ", pair, ", but got both");
}

void check_ranges(const VectorQuantizeOptions& o) {
  expect_vector_quantize(o.dim() >= 1, "dim", "at least 1", o.dim());
  expect_vector_quantize(o.codebook_size() >= 1, "codebook_size", "at least 1", o.codebook_size());
  expect_vector_quantize(o.codebook_dim().value_or(1) >= 1, "codebook_dim", "at least 1",
                         o.codebook_dim());
  expect_vector_quantize(o.heads() >= 1, "heads", "at least 1", o.heads());
  expect_vector_quantize(o.orthogonal_reg_max_codes().value_or(1) >= 1, "orthogonal_reg_max_codes",
                         "at least 1", o.orthogonal_reg_max_codes());
  expect_vector_quantize(o.decay() >= 0 && o.decay() <= 1, "decay", "in [0, 1]", o.decay());
  expect_vector_quantize(o.affine_param_batch_decay() >= 0 && o.affine_param_batch_decay() <= 1,
                         "affine_param_batch_decay", "in [0, 1]", o.affine_param_batch_decay());
  expect_vector_quantize(
      o.affine_param_codebook_decay() >= 0 && o.affine_param_codebook_decay() <= 1,
      "affine_param_codebook_decay", "in [0, 1]", o.affine_param_codebook_decay());
  expect_vector_quantize(o.sync_update_v() >= 0 && o.sync_update_v() <= 1, "sync_update_v",
                         "in [0, 1]", o.sync_update_v());
  expect_vector_quantize(std::isfinite(o.eps()) && o.eps() > 0, "eps", "above 0 and finite",
                         o.eps());
  expect_vector_quantize(std::isfinite(o.sample_codebook_temp()), "sample_codebook_temp", "finite",
                         o.sample_codebook_temp());
  expect_vector_quantize(o.reduction() == "exact" || o.reduction() == "float", "reduction",
                         "exact or float", o.reduction());
  expect_vector_quantize(o.sync_every() >= 1, "sync_every", "at least 1", o.sync_every());
}

void check_not_negative(const VectorQuantizeOptions& o) {
  expect_vector_quantize(o.kmeans_iters() >= 0, "kmeans_iters", "0 or more", o.kmeans_iters());
  const std::pair<const char*, double> thresholds[] = {
      {"threshold_ema_dead_code", o.threshold_ema_dead_code()},
      {"dead_code_threshold_fraction", o.dead_code_threshold_fraction()},
  };
  for (const auto& [name, value] : thresholds) {
    expect_vector_quantize(value >= 0 && value <= 0x1p63, name, "0 or more and at most 2^63",
                           value);
  }
  const std::pair<const char*, double> values[] = {
      {"directional_reparam_variance", o.directional_reparam_variance()},
      {"commitment_weight", o.commitment_weight()},
      {"orthogonal_reg_weight", o.orthogonal_reg_weight()},
      {"codebook_diversity_loss_weight", o.codebook_diversity_loss_weight()},
      {"codebook_diversity_temperature", o.codebook_diversity_temperature()},
  };
  for (const auto& [name, value] : values) {
    expect_vector_quantize(std::isfinite(value) && value >= 0, name, "0 or more and finite", value);
  }
}

void check_combinations(const VectorQuantizeOptions& o,
                        const ResolvedVectorQuantizeOptions& resolved) {
  const bool bridged = !o.vq_bridge().is_empty();
  const bool learnable = resolved.learnable_codebook;
  exclude(o.accept_image_fmap() && o.accept_3d_fmap(), "accept_image_fmap and accept_3d_fmap");
  exclude(learnable && resolved.ema_update,
          "learnable_codebook and ema_update (pass ema_update=False)");
  exclude(learnable && o.use_cosine_sim(), "learnable_codebook and use_cosine_sim");
  exclude(o.affine_param() && o.use_cosine_sim(), "affine_param and use_cosine_sim");
  exclude(o.vqp_compat() && o.sync_every() > 1, "vqp_compat and sync_every above 1");
  exclude(o.overlap_sync() && o.sync_every() > 1, "overlap_sync and sync_every above 1");
  exclude(o.straight_through() && resolved.rotation_trick,
          "straight_through and rotation_trick (pass rotation_trick=False)");
  exclude(o.straight_through() && learnable, "straight_through and learnable_codebook");
  exclude(o.directional_reparam() && resolved.rotation_trick,
          "directional_reparam and rotation_trick");
  exclude(o.directional_reparam() && o.straight_through(),
          "directional_reparam and straight_through");
  expect_vector_quantize(!bridged || learnable, "learnable_codebook", "True with vq_bridge",
                         learnable);
  expect_vector_quantize(o.sync_update_v() == 0 || learnable, "sync_update_v",
                         "0 without learnable_codebook", o.sync_update_v());
  expect_vector_quantize(
      !o.in_place_codebook_optimizer() || learnable || o.orthogonal_reg_weight() > 0,
      "in_place_codebook_optimizer", "none without learnable_codebook", "one");
  expect_vector_quantize(!o.directional_reparam() || o.threshold_ema_dead_code() > 0 ||
                             o.dead_code_threshold_fraction() > 0,
                         "threshold_ema_dead_code or dead_code_threshold_fraction",
                         "above 0 with directional_reparam", o.threshold_ema_dead_code());
}

}  // namespace

ResolvedVectorQuantizeOptions VectorQuantizeOptions::validate() const {
  check_ranges(*this);
  check_not_negative(*this);
  const bool by_gradient = directional_reparam() || !vq_bridge().is_empty();
  const ResolvedVectorQuantizeOptions resolved{
      .rotation_trick = rotation_trick().value_or(!directional_reparam() &&
                                                  dim() > 1),  // one dimension has no rotation
      .ema_update = ema_update().value_or(!by_gradient),
      .learnable_codebook = learnable_codebook().value_or(by_gradient),
  };
  check_combinations(*this, resolved);
  return resolved;
}

template <>
const detail::OptionTable<VectorQuantizeOptions>& detail::option_table() {
  static const OptionTable<VectorQuantizeOptions> table{
      .owner = "VectorQuantize",
      .defaults = VectorQuantizeOptions(1),
      .required = {"dim"},
      .rows = {
          TORCHVQ_OPTION(dim),
          TORCHVQ_OPTION(codebook_size),
          TORCHVQ_OPTION(codebook_dim),
          TORCHVQ_OPTION(heads),
          TORCHVQ_OPTION(separate_codebook_per_head),
          TORCHVQ_OPTION(layernorm_after_project_in),
          TORCHVQ_OPTION(channel_last),
          TORCHVQ_OPTION(accept_image_fmap),
          TORCHVQ_OPTION(accept_3d_fmap),
          TORCHVQ_OPTION(return_zeros_for_masked_padding),
          TORCHVQ_OPTION(use_cosine_sim),
          TORCHVQ_OPTION(stochastic_sample_codes),
          TORCHVQ_OPTION(sample_codebook_temp),
          TORCHVQ_OPTION(rotation_trick),
          TORCHVQ_OPTION(straight_through),
          TORCHVQ_OPTION(directional_reparam),
          TORCHVQ_OPTION(directional_reparam_variance),
          TORCHVQ_OPTION(sync_update_v),
          TORCHVQ_OPTION(route_gradients_to_input),
          TORCHVQ_OPTION(commitment_weight),
          TORCHVQ_OPTION(commitment_use_cross_entropy_loss),
          TORCHVQ_OPTION(orthogonal_reg_weight),
          TORCHVQ_OPTION(orthogonal_reg_active_codes_only),
          TORCHVQ_OPTION(orthogonal_reg_max_codes),
          TORCHVQ_OPTION(codebook_diversity_loss_weight),
          TORCHVQ_OPTION(codebook_diversity_temperature),
          TORCHVQ_OPTION(decay),
          TORCHVQ_OPTION(eps),
          TORCHVQ_OPTION(freeze_codebook),
          TORCHVQ_OPTION(ema_update),
          TORCHVQ_OPTION(manual_ema_update),
          TORCHVQ_OPTION(learnable_codebook),
          TORCHVQ_OPTION(in_place_codebook_optimizer),
          TORCHVQ_OPTION(manual_in_place_optimizer_update),
          TORCHVQ_OPTION(vq_bridge),
          TORCHVQ_OPTION(kmeans_init),
          TORCHVQ_OPTION(kmeans_iters),
          TORCHVQ_OPTION(threshold_ema_dead_code),
          TORCHVQ_OPTION(dead_code_threshold_fraction),
          TORCHVQ_COMPAT_OPTION,
          TORCHVQ_OPTION(affine_param),
          TORCHVQ_OPTION(affine_param_batch_decay),
          TORCHVQ_OPTION(affine_param_codebook_decay),
          TORCHVQ_OPTION(sync_codebook),
          TORCHVQ_OPTION(sync_kmeans),
          TORCHVQ_OPTION(sync_affine_param),
          TORCHVQ_OPTION(process_group),
          TORCHVQ_OPTION(reduction),
          TORCHVQ_OPTION(sync_every),
          TORCHVQ_OPTION(overlap_sync),
      }};
  return table;
}

}  // namespace torchvq
