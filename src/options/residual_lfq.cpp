#include <torchvq/options/residual_lfq.h>

#include <c10/util/Exception.h>

namespace torchvq {
namespace {

template <typename T>
void expect(bool holds, const char* name, const char* condition, const T& value) {
  TORCH_CHECK_VALUE(holds, "ResidualLFQOptions: expected ", name, " to be ", condition,
                    ", but got ", value);
}

}  // namespace

void ResidualLFQOptions::validate() const {
  expect(dim() >= 1, "dim", "at least 1", dim());
  expect(num_quantizers() >= 1, "num_quantizers", "at least 1", num_quantizers());
  const auto cutoff = quantize_dropout_cutoff_index();
  expect(cutoff >= 0 && cutoff < num_quantizers(), "quantize_dropout_cutoff_index",
         "in [0, num_quantizers)", cutoff);
  expect(quantize_dropout_multiple_of() >= 1, "quantize_dropout_multiple_of", "at least 1",
         quantize_dropout_multiple_of());
  expect(lfq().num_codebooks() == 1, "num_codebooks", "1", lfq().num_codebooks());
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
