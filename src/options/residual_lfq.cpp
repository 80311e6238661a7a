#include <torchvq/options/residual_lfq.h>

#include "options/check_dropout.h"
#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_residual_lfq{"ResidualLFQ"};
constexpr detail::ExpectOption expect_grouped_residual_lfq{"GroupedResidualLFQ"};

}  // namespace

void ResidualLFQOptions::validate() const {
  expect_residual_lfq(dim() >= 1, "dim", "at least 1", dim());
  expect_residual_lfq(num_quantizers() >= 1, "num_quantizers", "at least 1", num_quantizers());
  detail::check_dropout(expect_residual_lfq, *this, num_quantizers());
  expect_residual_lfq(lfq().num_codebooks() == 1, "num_codebooks", "1", lfq().num_codebooks());
  LFQOptions(lfq())
      .dim(std::nullopt)
      .codebook_size(codebook_size())
      .codebook_scale(1)
      .soft_clamp_input_value(soft_clamp_input_value())
      .validate();
}

void GroupedResidualLFQOptions::validate() const {
  rlfq().validate();
  expect_grouped_residual_lfq(groups() >= 1, "groups", "at least 1", groups());
  expect_grouped_residual_lfq(dim() >= 1 && dim() % groups() == 0, "dim",
                              "a multiple of " + std::to_string(groups()) + " groups", dim());
}

template <>
const detail::OptionTable<ResidualLFQOptions>& detail::option_table() {
  static const OptionRows<ResidualLFQOptions> own{
      TORCHVQ_OPTION(dim),
      TORCHVQ_OPTION(num_quantizers),
      TORCHVQ_OPTION(codebook_size),
      TORCHVQ_OPTION(is_channel_first),
      TORCHVQ_OPTION(quantize_dropout),
      TORCHVQ_OPTION(quantize_dropout_cutoff_index),
      TORCHVQ_OPTION(quantize_dropout_multiple_of),
      TORCHVQ_OPTION(soft_clamp_input_value),
      TORCHVQ_COMPAT_OPTION,
  };
  static const OptionTable<ResidualLFQOptions> table{
      .owner = "ResidualLFQ",
      .defaults = ResidualLFQOptions(1, 1, 2),
      .required = {"dim", "num_quantizers", "codebook_size"},
      .rows = with_part(own, option_table<LFQOptions>().rows,
                        [](auto& options) -> auto& { return options.lfq(); })};
  return table;
}

template <>
const detail::OptionTable<GroupedResidualLFQOptions>& detail::option_table() {
  static const OptionRows<GroupedResidualLFQOptions> own{
      TORCHVQ_OPTION(dim), TORCHVQ_OPTION(groups), TORCHVQ_OPTION(accept_image_fmap)};
  static const OptionTable<GroupedResidualLFQOptions> table{
      .owner = "GroupedResidualLFQ",
      .defaults = GroupedResidualLFQOptions(1, ResidualLFQOptions(1, 1, 2)),
      .required = {"dim", "num_quantizers", "codebook_size"},
      .rows = with_part(own, option_table<ResidualLFQOptions>().rows,
                        [](auto& options) -> auto& { return options.rlfq(); })};
  return table;
}

}  // namespace torchvq
