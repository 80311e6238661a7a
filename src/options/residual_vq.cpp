#include <torchvq/options/residual_vq.h>

#include <algorithm>
#include <cmath>

#include <c10/util/Exception.h>

#include "options/check_dropout.h"
#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_residual_vq{"ResidualVQ"};

constexpr int64_t kMostLevels = 65536;

std::vector<int64_t> resolve_sizes(const ResidualVQOptions& o) {
  const auto& [sizes, each] = o.codebook_size();
  if (!each) {
    const auto levels = o.num_quantizers().value_or(0);
    expect_residual_vq(levels >= 1, "num_quantizers", "at least 1", o.num_quantizers());
    expect_residual_vq(levels <= kMostLevels, "num_quantizers",
                       "at most " + std::to_string(kMostLevels), o.num_quantizers());
    return std::vector<int64_t>(levels, sizes[0]);
  }
  const auto levels = static_cast<int64_t>(sizes.size());
  expect_residual_vq(levels >= 1, "codebook_size", "a size or at least one of them", sizes);
  expect_residual_vq(o.num_quantizers().value_or(levels) == levels, "num_quantizers",
                     "the number of codebook sizes, " + std::to_string(levels), o.num_quantizers());
  const bool alike = std::all_of(sizes.begin(), sizes.end(),
                                 [&, first = sizes[0]](int64_t size) { return size == first; });
  expect_residual_vq(!o.shared_codebook() || alike, "codebook_size",
                     "one size where the codebook is shared", sizes);
  return sizes;
}

void check_ranges(const ResidualVQOptions& o, int64_t levels) {
  expect_residual_vq(o.dim() >= 1, "dim", "at least 1", o.dim());
  expect_residual_vq(o.heads() >= 1, "heads", "at least 1", o.heads());
  detail::check_dropout(expect_residual_vq, o, levels);
  expect_residual_vq(o.quant_grad_frac() >= 0 && o.quant_grad_frac() <= 1, "quant_grad_frac",
                     "in [0, 1]", o.quant_grad_frac());
  expect_residual_vq(o.codebook_dim().value_or(1) >= 1, "codebook_dim", "at least 1",
                     o.codebook_dim());
  expect_residual_vq(o.mlp_kwargs().dim_hidden().value_or(1) >= 1, "mlp_kwargs.dim_hidden",
                     "at least 1", o.mlp_kwargs().dim_hidden());
  expect_residual_vq(o.mlp_kwargs().depth() >= 0, "mlp_kwargs.depth", "0 or more",
                     o.mlp_kwargs().depth());
}

void check_combinations(const ResidualVQOptions& o) {
  const bool learns = o.implicit_neural_codebook() || o.diveq();
  constexpr auto condition = "off with implicit_neural_codebook and diveq";
  expect_residual_vq(!learns || !o.vq().use_cosine_sim(), "use_cosine_sim", condition, true);
  expect_residual_vq(!learns || !o.vq().straight_through(), "straight_through", condition, true);
  expect_residual_vq(!o.implicit_neural_codebook() || !o.vq().in_place_codebook_optimizer(),
                     "in_place_codebook_optimizer", "none with implicit_neural_codebook", "one");
  // The levels of other stacks check this by themselves.
  const auto& vq = o.vq();
  const bool by_gradient = vq.learnable_codebook().value_or(learns || vq.directional_reparam() ||
                                                            !vq.vq_bridge().is_empty());
  const bool moves = by_gradient || vq.orthogonal_reg_weight() > 0;
  expect_residual_vq(!o.shared_codebook() || !vq.in_place_codebook_optimizer() || moves,
                     "in_place_codebook_optimizer", "none without learnable_codebook", "one");
}

void check_beam(const ResidualVQOptions& o, int64_t levels) {
  const std::pair<const char*, std::optional<int64_t>> sizes[] = {
      {"beam_size", o.beam_size()}, {"eval_beam_size", o.eval_beam_size()}};
  for (const auto& [name, size] : sizes) {
    expect_residual_vq(size.value_or(1) >= 1, name, "at least 1", size);
  }
  if (const auto& weights = o.beam_score_quantizer_weights()) {
    const bool usable = std::all_of(weights->begin(), weights->end(), [](double weight) {
      return weight >= 0 && std::isfinite(weight);
    });
    expect_residual_vq(usable && static_cast<int64_t>(weights->size()) == levels,
                       "beam_score_quantizer_weights",
                       std::to_string(levels) + " finite, non-negative numbers", *weights);
  }
}

}  // namespace

std::vector<int64_t> ResidualVQOptions::validate() const {
  auto sizes = resolve_sizes(*this);
  const auto levels = static_cast<int64_t>(sizes.size());
  check_ranges(*this, levels);
  check_combinations(*this);
  check_beam(*this, levels);
  return sizes;
}

void GroupedResidualVQOptions::validate() const {
  constexpr detail::ExpectOption expect{"GroupedResidualVQ"};
  expect(groups() >= 1, "groups", "at least 1", groups());
  expect(dim() >= 1 && dim() % groups() == 0, "dim",
         "a multiple of " + std::to_string(groups()) + " groups", dim());
  rvq().validate();
}

// By name -----------------------------------------------------------------------------------------

template <>
const detail::OptionTable<ResidualVQOptions>& detail::option_table() {
  static const OptionRows<ImplicitCodebookOptions> networks{TORCHVQ_OPTION(dim_hidden),
                                                            TORCHVQ_OPTION(depth)};
  static const OptionRows<ResidualVQOptions> own{
      TORCHVQ_OPTION(dim),
      TORCHVQ_OPTION(num_quantizers),
      TORCHVQ_OPTION(codebook_size),
      TORCHVQ_OPTION(codebook_dim),
      TORCHVQ_OPTION(heads),
      TORCHVQ_OPTION(accept_image_fmap),
      TORCHVQ_OPTION(return_zeros_for_masked_padding),
      TORCHVQ_OPTION(shared_codebook),
      TORCHVQ_OPTION(diveq),
      TORCHVQ_OPTION(quant_grad_frac),
      TORCHVQ_OPTION(quantize_dropout),
      TORCHVQ_OPTION(quantize_dropout_cutoff_index),
      TORCHVQ_OPTION(quantize_dropout_multiple_of),
      TORCHVQ_OPTION(implicit_neural_codebook),
      TORCHVQ_OPTION(beam_size),
      TORCHVQ_OPTION(eval_beam_size),
      TORCHVQ_OPTION(beam_score_quantizer_weights),
  };
  static const OptionTable<ResidualVQOptions> table{
      .owner = "ResidualVQ",
      .defaults = ResidualVQOptions(1),
      .required = {"dim"},
      .rows =
          with_part(with_part(
                        own, networks, [](auto& options) -> auto& { return options.mlp_kwargs(); },
                        {}, "mlp_kwargs."),
                    option_table<VectorQuantizeOptions>().rows,
                    [](auto& options) -> auto& { return options.vq(); })};
  return table;
}

template <>
const detail::OptionTable<GroupedResidualVQOptions>& detail::option_table() {
  static const OptionRows<GroupedResidualVQOptions> own{TORCHVQ_OPTION(dim), TORCHVQ_OPTION(groups),
                                                        TORCHVQ_OPTION(accept_image_fmap)};
  static const OptionTable<GroupedResidualVQOptions> table{
      .owner = "GroupedResidualVQ",
      .defaults = GroupedResidualVQOptions(1),
      .required = {"dim"},
      .rows = with_part(own, option_table<ResidualVQOptions>().rows,
                        [](auto& options) -> auto& { return options.rvq(); })};
  return table;
}

}  // namespace torchvq
