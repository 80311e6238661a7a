#include <torchvq/options/residual_fsq.h>

#include <algorithm>

#include <c10/util/Exception.h>

#include "detail/scalar_levels.h"

namespace torchvq {
namespace {

constexpr auto kOwner = "ResidualFSQOptions";

template <typename T>
void expect(bool holds, const char* name, const char* condition, const T& value) {
  TORCH_CHECK_VALUE(holds, kOwner, ": expected ", name, " to be ", condition, ", but got ", value);
}

}  // namespace

void ResidualFSQOptions::validate() const {
  detail::check_scalar_levels(kOwner, levels(), 2);
  expect(num_quantizers() >= 1, "num_quantizers", "at least 1", num_quantizers());
  expect(dim().value_or(1) >= 1, "dim", "at least 1", dim().value_or(1));
  const auto cutoff = quantize_dropout_cutoff_index();
  expect(cutoff >= 0 && cutoff < num_quantizers(), "quantize_dropout_cutoff_index",
         "in [0, num_quantizers)", cutoff);
  expect(quantize_dropout_multiple_of() >= 1, "quantize_dropout_multiple_of", "at least 1",
         quantize_dropout_multiple_of());
  expect(fsq().num_codebooks() == 1, "num_codebooks", "1", fsq().num_codebooks());
  const auto& limit = soft_clamp_input_value();
  expect(!limit || !bound_hard_clamp(), "soft_clamp_input_value", "left out with bound_hard_clamp",
         limit.value_or(std::vector<double>()));
  const auto fits = [&](const std::vector<double>& values) {
    return (values.size() == 1 || values.size() == levels().size()) &&
           std::all_of(values.begin(), values.end(), [](double value) { return value > 0; });
  };
  expect(!limit || fits(*limit), "soft_clamp_input_value",
         "a positive number, or one for each feature", limit.value_or(std::vector<double>()));
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
