#include <torchvq/options/residual_fsq.h>

#include <algorithm>
#include <cmath>

#include "detail/scalar_levels.h"
#include "options/check_dropout.h"
#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_residual_fsq{"ResidualFSQ"};
constexpr detail::ExpectOption expect_grouped_residual_fsq{"GroupedResidualFSQ"};

void check_soft_clamp(const ResidualFSQOptions& o) {
  const auto& limit = o.soft_clamp_input_value();
  if (!limit) return;
  expect_residual_fsq(!o.bound_hard_clamp(), "soft_clamp_input_value",
                      "left out with bound_hard_clamp", limit);
  const auto count = o.levels().size();
  const bool positive = std::all_of(limit->begin(), limit->end(),
                                    [](double value) { return std::isfinite(value) && value > 0; });
  expect_residual_fsq((limit->size() == 1 || limit->size() == count) && positive,
                      "soft_clamp_input_value",
                      "a positive finite number, or " + std::to_string(count) + " of them", limit);
}

}  // namespace

void ResidualFSQOptions::validate() const {
  detail::check_scalar_levels("ResidualFSQ", levels(), 2);
  expect_residual_fsq(num_quantizers() >= 1, "num_quantizers", "at least 1", num_quantizers());
  expect_residual_fsq(dim().value_or(1) >= 1, "dim", "at least 1", dim());
  detail::check_dropout(expect_residual_fsq, *this, num_quantizers());
  expect_residual_fsq(fsq().num_codebooks() == 1, "num_codebooks", "1", fsq().num_codebooks());
  check_soft_clamp(*this);
}

void GroupedResidualFSQOptions::validate() const {
  rfsq().validate();
  expect_grouped_residual_fsq(groups() >= 1, "groups", "at least 1", groups());
  expect_grouped_residual_fsq(dim() >= 1 && dim() % groups() == 0, "dim",
                              "a multiple of " + std::to_string(groups()) + " groups", dim());
}

template <>
const detail::OptionTable<ResidualFSQOptions>& detail::option_table() {
  static const OptionRows<ResidualFSQOptions> own{
      TORCHVQ_OPTION(levels),
      TORCHVQ_OPTION(num_quantizers),
      TORCHVQ_OPTION(dim),
      TORCHVQ_OPTION(is_channel_first),
      TORCHVQ_OPTION(quantize_dropout),
      TORCHVQ_OPTION(quantize_dropout_cutoff_index),
      TORCHVQ_OPTION(quantize_dropout_multiple_of),
      TORCHVQ_OPTION(soft_clamp_input_value),
      TORCHVQ_OPTION(bound_hard_clamp),
      TORCHVQ_COMPAT_OPTION,
  };
  static const OptionTable<ResidualFSQOptions> table{
      .owner = "ResidualFSQ",
      .defaults = ResidualFSQOptions({}, 1),
      .required = {"levels", "num_quantizers"},
      .rows =
          with_part(own, option_table<FSQOptions>().rows,
                    [](auto& options) -> auto& { return options.fsq(); }, {"preserve_symmetry"})};
  return table;
}

template <>
const detail::OptionTable<GroupedResidualFSQOptions>& detail::option_table() {
  static const OptionRows<GroupedResidualFSQOptions> own{
      TORCHVQ_OPTION(dim), TORCHVQ_OPTION(groups), TORCHVQ_OPTION(accept_image_fmap)};
  static const OptionTable<GroupedResidualFSQOptions> table{
      .owner = "GroupedResidualFSQ",
      .defaults = GroupedResidualFSQOptions(1, ResidualFSQOptions({}, 1)),
      .required = {"dim", "levels", "num_quantizers"},
      .rows = with_part(own, option_table<ResidualFSQOptions>().rows,
                        [](auto& options) -> auto& { return options.rfsq(); })};
  return table;
}

}  // namespace torchvq
