#include <torchvq/options/residual_lfq.h>

#include <c10/util/Exception.h>

#include "options/expect.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_residual_lfq{"ResidualLFQOptions"};

}  // namespace

void ResidualLFQOptions::validate() const {
  expect_residual_lfq(dim() >= 1, "dim", "at least 1", dim());
  expect_residual_lfq(num_quantizers() >= 1, "num_quantizers", "at least 1", num_quantizers());
  const auto cutoff = quantize_dropout_cutoff_index();
  expect_residual_lfq(cutoff >= 0 && cutoff < num_quantizers(), "quantize_dropout_cutoff_index",
                      "in [0, num_quantizers)", cutoff);
  expect_residual_lfq(quantize_dropout_multiple_of() >= 1, "quantize_dropout_multiple_of",
                      "at least 1", quantize_dropout_multiple_of());
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
  TORCH_CHECK_VALUE(groups() >= 1,
                    "GroupedResidualLFQOptions: expected groups to be at least 1, but got ",
                    groups());
  TORCH_CHECK_VALUE(dim() >= 1 && dim() % groups() == 0,
                    "GroupedResidualLFQOptions: expected dim to be a multiple of ", groups(),
                    " groups, but got ", dim());
}

}  // namespace torchvq
