#include <torchvq/options/hierarchical_vq.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <c10/util/Exception.h>

#include <torchvq/functional/scales.h>

#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_hierarchical_vq{"HierarchicalVQ"};

std::vector<int64_t> codes_of_scales(const HierarchicalVQOptions& o, size_t scales) {
  const auto& [sizes, each] = o.codebook_size();
  if (!each) return std::vector<int64_t>(scales, sizes[0]);
  expect_hierarchical_vq(sizes.size() == scales, "codebook_size",
                         "a size or " + std::to_string(scales) + ", one for each scale", sizes);
  const bool alike = std::all_of(sizes.begin(), sizes.end(),
                                 [&first = sizes[0]](int64_t size) { return size == first; });
  expect_hierarchical_vq(alike || !o.shared_codebook(), "codebook_size",
                         "one size where the codebook is shared", sizes);
  return sizes;
}

std::vector<std::vector<int64_t>> grids_of_scales(const HierarchicalVQOptions& o) {
  const auto& scales = o.scales();
  const auto axes = static_cast<size_t>(o.spatial_dims());
  expect_hierarchical_vq(!scales.each.empty(), "scales", "at least one", scales);
  std::vector<std::vector<int64_t>> shapes;
  for (const auto& scale : scales.each) {
    const bool fits = (scale.size() == 1 || scale.size() == axes) &&
                      std::all_of(scale.begin(), scale.end(), [](int64_t n) { return n >= 1; });
    expect_hierarchical_vq(
        fits, "scales", "numbers of at least 1, or " + std::to_string(axes) + " of them per scale",
        scales);
    shapes.push_back(scale.size() == axes ? scale : std::vector<int64_t>(axes, scale[0]));
  }
  for (size_t n = 1; n < shapes.size(); ++n) {
    for (size_t axis = 0; axis < axes; ++axis) {
      expect_hierarchical_vq(shapes[n - 1][axis] <= shapes[n][axis], "scales", "non-decreasing",
                             scales);
    }
  }
  return shapes;
}

}  // namespace

VectorQuantizeOptions HierarchicalVQOptions::vq(int64_t size) const {
  return VectorQuantizeOptions(dim())
      .codebook_size(size)
      .decay(decay())
      .commitment_weight(commitment_weight())
      .rotation_trick(rotation_trick())
      .kmeans_init(kmeans_init())
      .kmeans_iters(kmeans_iters())
      .threshold_ema_dead_code(threshold_ema_dead_code())
      .dead_code_threshold_fraction(dead_code_threshold_fraction())
      .stochastic_sample_codes(stochastic_sample_codes())
      .sample_codebook_temp(sample_codebook_temp())
      .orthogonal_reg_weight(orthogonal_reg_weight())
      .orthogonal_reg_max_codes(orthogonal_reg_max_codes())
      .orthogonal_reg_active_codes_only(orthogonal_reg_active_codes_only())
      .use_cosine_sim(use_cosine_sim())
      .sync_codebook(sync_codebook())
      .process_group(process_group())
      .reduction(reduction())
      .sync_every(sync_every())
      .vqp_compat(vqp_compat());
}

ResolvedHierarchicalVQOptions HierarchicalVQOptions::validate() const {
  expect_hierarchical_vq(dim() >= 1, "dim", "at least 1", dim());
  TORCH_CHECK_VALUE(!accept_image_fmap() || !accept_3d_fmap(),
                    "HierarchicalVQ: expected at most one of accept_image_fmap and "
                    "accept_3d_fmap, but got both");
  ResolvedHierarchicalVQOptions resolved;
  resolved.shapes = grids_of_scales(*this);
  const auto scales = static_cast<int64_t>(resolved.shapes.size());
  resolved.sizes = codes_of_scales(*this, resolved.shapes.size());
  expect_hierarchical_vq(std::isfinite(quant_resi()), "quant_resi", "finite", quant_resi());
  expect_hierarchical_vq(nested_dropout() >= 0 && nested_dropout() <= 1, "nested_dropout",
                         "in [0, 1]", nested_dropout());
  expect_hierarchical_vq(nested_dropout_min_levels() >= 1, "nested_dropout_min_levels",
                         "at least 1", nested_dropout_min_levels());
  for (const auto size : resolved.sizes) vq(size).validate();
  resolved.convolutions = share_quant_resi() == 1
                              ? std::vector<int64_t>(scales, 0)
                              : functional::convolution_of_scales(scales, share_quant_resi());
  return resolved;
}

template <>
const detail::OptionTable<HierarchicalVQOptions>& detail::option_table() {
  static const OptionTable<HierarchicalVQOptions> table{
      .owner = "HierarchicalVQ",
      .defaults = HierarchicalVQOptions(1, 1, {1}),
      .required = {"dim", "codebook_size", "scales"},
      .rows = {
          TORCHVQ_OPTION(dim),
          TORCHVQ_OPTION(codebook_size),
          TORCHVQ_OPTION(scales),
          TORCHVQ_OPTION(shared_codebook),
          TORCHVQ_OPTION(channel_first),
          TORCHVQ_OPTION(accept_image_fmap),
          TORCHVQ_OPTION(accept_3d_fmap),
          TORCHVQ_OPTION(quant_resi),
          TORCHVQ_OPTION(share_quant_resi),
          TORCHVQ_OPTION(nested_dropout),
          TORCHVQ_OPTION(nested_dropout_min_levels),
          TORCHVQ_OPTION(decay),
          TORCHVQ_OPTION(commitment_weight),
          TORCHVQ_OPTION(rotation_trick),
          TORCHVQ_OPTION(kmeans_init),
          TORCHVQ_OPTION(kmeans_iters),
          TORCHVQ_OPTION(threshold_ema_dead_code),
          TORCHVQ_OPTION(dead_code_threshold_fraction),
          TORCHVQ_OPTION(stochastic_sample_codes),
          TORCHVQ_OPTION(sample_codebook_temp),
          TORCHVQ_OPTION(orthogonal_reg_weight),
          TORCHVQ_OPTION(orthogonal_reg_max_codes),
          TORCHVQ_OPTION(orthogonal_reg_active_codes_only),
          TORCHVQ_OPTION(use_cosine_sim),
          TORCHVQ_OPTION(freeze_codebook),
          TORCHVQ_OPTION(sync_codebook),
          TORCHVQ_OPTION(process_group),
          TORCHVQ_OPTION(reduction),
          TORCHVQ_OPTION(sync_every),
          TORCHVQ_COMPAT_OPTION,
      }};
  return table;
}

}  // namespace torchvq
