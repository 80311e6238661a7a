#include <torchvq/options/lfq.h>

#include <bit>
#include <cmath>

#include <c10/util/Exception.h>

#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_lfq{"LFQ"};

void check_lfq_weight(const char* name, double weight) {
  expect_lfq(std::isfinite(weight) && weight >= 0, name, "0 or more and finite", weight);
}

void check_lfq_size(const LFQOptions& o) {
  TORCH_CHECK_VALUE(o.dim() || o.codebook_size(),
                    "LFQ: expected dim or codebook_size to be given, but got neither");
  expect_lfq(o.num_codebooks() >= 1, "num_codebooks", "at least 1", o.num_codebooks());
  expect_lfq(o.dim().value_or(1) >= 1, "dim", "at least 1", o.dim());
  const int64_t size = o.codebook_size().value_or(2);
  expect_lfq(size >= 2 && (size & (size - 1)) == 0, "codebook_size", "a power of 2 from 2 to 2^62",
             size);
  expect_lfq(o.codebook_size() || o.dim().value_or(1) <= 62, "dim",
             "at most 62 where codebook_size is not given", o.dim());
  const int64_t bits =
      o.codebook_size() ? std::countr_zero(static_cast<uint64_t>(size)) : o.dim().value_or(0);
  const int64_t inner = bits * o.num_codebooks();
  expect_lfq(o.has_projections().value_or(true) || o.dim().value_or(inner) == inner, "dim",
             std::to_string(inner) + " (bits of all codebooks) without projections", o.dim());
}

}  // namespace

void LFQOptions::validate() const {
  check_lfq_size(*this);
  expect_lfq(std::isfinite(codebook_scale()) && codebook_scale() > 0, "codebook_scale",
             "above 0 and finite", codebook_scale());
  check_lfq_weight("entropy_loss_weight", entropy_loss_weight());
  check_lfq_weight("commitment_loss_weight", commitment_loss_weight());
  check_lfq_weight("diversity_gamma", diversity_gamma());
  expect_lfq(frac_per_sample_entropy() > 0 && frac_per_sample_entropy() <= 1,
             "frac_per_sample_entropy", "in (0, 1]", frac_per_sample_entropy());
  const double clamp = soft_clamp_input_value().value_or(codebook_scale());
  expect_lfq(std::isfinite(clamp) && clamp >= codebook_scale(), "soft_clamp_input_value",
             "at least codebook_scale and finite", soft_clamp_input_value());
  expect_lfq(std::isfinite(entropy_loss_offset()), "entropy_loss_offset", "finite",
             entropy_loss_offset());
  expect_lfq(std::isfinite(cosine_sim_project_in_scale().value_or(1)),
             "cosine_sim_project_in_scale", "finite", cosine_sim_project_in_scale());
  expect_lfq(keep_num_codebooks_dim().value_or(true) || num_codebooks() == 1,
             "keep_num_codebooks_dim", "True or None with several codebooks",
             keep_num_codebooks_dim());
}

template <>
const detail::OptionTable<LFQOptions>& detail::option_table() {
  static const OptionTable<LFQOptions> table{.owner = "LFQ",
                                             .defaults = LFQOptions(),
                                             .required = {},
                                             .rows = {
                                                 TORCHVQ_OPTION(dim),
                                                 TORCHVQ_OPTION(codebook_size),
                                                 TORCHVQ_OPTION(num_codebooks),
                                                 TORCHVQ_OPTION(keep_num_codebooks_dim),
                                                 TORCHVQ_OPTION(channel_first),
                                                 TORCHVQ_OPTION(entropy_loss_weight),
                                                 TORCHVQ_OPTION(commitment_loss_weight),
                                                 TORCHVQ_OPTION(diversity_gamma),
                                                 TORCHVQ_OPTION(frac_per_sample_entropy),
                                                 TORCHVQ_OPTION(experimental_softplus_entropy_loss),
                                                 TORCHVQ_OPTION(entropy_loss_offset),
                                                 TORCHVQ_OPTION(codebook_scale),
                                                 TORCHVQ_OPTION(spherical),
                                                 TORCHVQ_OPTION(orthogonal_rotation),
                                                 TORCHVQ_OPTION(soft_clamp_input_value),
                                                 TORCHVQ_OPTION(straight_through_activation),
                                                 TORCHVQ_OPTION(force_quantization_f32),
                                                 TORCHVQ_OPTION(has_projections),
                                                 TORCHVQ_OPTION(projection_has_bias),
                                                 TORCHVQ_OPTION(cosine_sim_project_in),
                                                 TORCHVQ_OPTION(cosine_sim_project_in_scale),
                                                 TORCHVQ_OPTION(sync_codebook),
                                                 TORCHVQ_OPTION(process_group),
                                                 TORCHVQ_COMPAT_OPTION,
                                             }};
  return table;
}

}  // namespace torchvq
