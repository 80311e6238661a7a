#include <torchvq/options/residual_fsq.h>

#include <algorithm>

#include <c10/util/Exception.h>

#include "detail/scalar_levels.h"
#include "options/expect.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_residual_fsq{"ResidualFSQOptions"};

constexpr auto kOwner = "ResidualFSQOptions";

}  // namespace

void ResidualFSQOptions::validate() const {
  detail::check_scalar_levels(kOwner, levels(), 2);
  expect_residual_fsq(num_quantizers() >= 1, "num_quantizers", "at least 1", num_quantizers());
  expect_residual_fsq(dim().value_or(1) >= 1, "dim", "at least 1", dim().value_or(1));
  const auto cutoff = quantize_dropout_cutoff_index();
  expect_residual_fsq(cutoff >= 0 && cutoff < num_quantizers(), "quantize_dropout_cutoff_index",
                      "in [0, num_quantizers)", cutoff);
  expect_residual_fsq(quantize_dropout_multiple_of() >= 1, "quantize_dropout_multiple_of",
                      "at least 1", quantize_dropout_multiple_of());
  expect_residual_fsq(fsq().num_codebooks() == 1, "num_codebooks", "1", fsq().num_codebooks());
  const auto& limit = soft_clamp_input_value();
  expect_residual_fsq(!limit || !bound_hard_clamp(), "soft_clamp_input_value",
                      "left out with bound_hard_clamp", limit.value_or(std::vector<double>()));
  const auto fits = [&](const std::vector<double>& values) {
    return (values.size() == 1 || values.size() == levels().size()) &&
           std::all_of(values.begin(), values.end(), [](double value) { return value > 0; });
  };
  expect_residual_fsq(!limit || fits(*limit), "soft_clamp_input_value",
                      "a positive number, or one for each feature",
                      limit.value_or(std::vector<double>()));
}

void GroupedResidualFSQOptions::validate() const {
  rfsq().validate();
  TORCH_CHECK_VALUE(groups() >= 1,
                    "GroupedResidualFSQOptions: expected groups to be at least 1, but got ",
                    groups());
  TORCH_CHECK_VALUE(dim() >= 1 && dim() % groups() == 0,
                    "GroupedResidualFSQOptions: expected dim to be a multiple of ", groups(),
                    " groups, but got ", dim());
}

}  // namespace torchvq
