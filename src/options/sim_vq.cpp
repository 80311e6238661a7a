#include <torchvq/options/sim_vq.h>

#include <cmath>

#include <c10/util/Exception.h>

#include "options/check_dropout.h"
#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_sim_vq{"SimVQ"};
constexpr detail::ExpectOption expect_residual_sim_vq{"ResidualSimVQ"};

bool is_weight(double value) { return value >= 0 && std::isfinite(value); }

}  // namespace

void SimVQOptions::validate() const {
  expect_sim_vq(dim() >= 1, "dim", "at least 1", dim());
  expect_sim_vq(codebook_size() >= 1, "codebook_size", "at least 1", codebook_size());
  const auto frozen = frozen_codebook_dim().value_or(dim());
  expect_sim_vq(frozen >= 1, "frozen_codebook_dim", "at least 1", frozen);
  const auto pull = input_to_quantize_commit_loss_weight();
  expect_sim_vq(is_weight(pull), "input_to_quantize_commit_loss_weight", "0 or more and finite",
                pull);
  expect_sim_vq(is_weight(commitment_weight()), "commitment_weight", "0 or more and finite",
                commitment_weight());
}

void ResidualSimVQOptions::validate() const {
  expect_residual_sim_vq(dim() >= 1, "dim", "at least 1", dim());
  expect_residual_sim_vq(num_quantizers() >= 1, "num_quantizers", "at least 1", num_quantizers());
  expect_residual_sim_vq(heads() >= 1 && dim() % heads() == 0, "heads",
                         "at least 1 and a divisor of dim", heads());
  detail::check_dropout(expect_residual_sim_vq, *this, num_quantizers());
  const auto beam = eval_beam_size().value_or(1);
  expect_residual_sim_vq(beam >= 1, "eval_beam_size", "at least 1", beam);
  SimVQOptions(sim_vq()).dim(dim() / heads()).codebook_size(codebook_size()).validate();
}

template <>
const detail::OptionTable<SimVQOptions>& detail::option_table() {
  static const OptionTable<SimVQOptions> table{
      .owner = "SimVQ",
      .defaults = SimVQOptions(1, 1),
      .required = {"dim", "codebook_size"},
      .rows = {
          TORCHVQ_OPTION(dim),
          TORCHVQ_OPTION(codebook_size),
          TORCHVQ_OPTION(codebook_transform),
          TORCHVQ_OPTION(init_fn),
          TORCHVQ_OPTION(channel_first),
          TORCHVQ_OPTION(rotation_trick),
          TORCHVQ_OPTION(input_to_quantize_commit_loss_weight),
          TORCHVQ_OPTION(commitment_weight),
          TORCHVQ_OPTION(frozen_codebook_dim),
          TORCHVQ_OPTION(sync_codebook),
          TORCHVQ_OPTION(process_group),
          TORCHVQ_COMPAT_OPTION,
      }};
  return table;
}

template <>
const detail::OptionTable<ResidualSimVQOptions>& detail::option_table() {
  static const OptionRows<ResidualSimVQOptions> own{
      TORCHVQ_OPTION(dim),
      TORCHVQ_OPTION(num_quantizers),
      TORCHVQ_OPTION(codebook_size),
      TORCHVQ_OPTION(heads),
      TORCHVQ_OPTION(quantize_dropout),
      TORCHVQ_OPTION(quantize_dropout_cutoff_index),
      TORCHVQ_OPTION(quantize_dropout_multiple_of),
      TORCHVQ_OPTION(channel_first),
      TORCHVQ_OPTION(rotation_trick),
      TORCHVQ_OPTION(eval_beam_size),
  };
  static const OptionTable<ResidualSimVQOptions> table{
      .owner = "ResidualSimVQ",
      .defaults = ResidualSimVQOptions(1, 1, 1),
      .required = {"dim", "num_quantizers", "codebook_size"},
      .rows = with_part(own, option_table<SimVQOptions>().rows,
                        [](auto& options) -> auto& { return options.sim_vq(); })};
  return table;
}

}  // namespace torchvq
