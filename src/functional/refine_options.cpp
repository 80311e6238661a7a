#include "functional/refine_options.h"

#include <algorithm>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include "detail/token_checks.h"

namespace torchvq::functional {
namespace {

void check_levels(int64_t dim, at::TensorList codebooks, const std::string& label) {
  TORCH_CHECK_VALUE(!codebooks.empty(), label,
                    ": expected codebooks to have at least 1 level, but got none");
  for (const auto& codebook : codebooks) {
    TORCH_CHECK_VALUE(
        codebook.dim() == 2 && codebook.size(0) >= 1 && codebook.size(1) == dim && dim >= 1, label,
        ": expected codebooks to have shape (K, ", dim, ") with K >= 1, but got ",
        codebook.sizes());
    TORCH_CHECK_TYPE(codebook.scalar_type() == at::kFloat, label,
                     ": expected codebooks to be float32, but got ", codebook.scalar_type());
  }
}

void check_numbers(const RefineCodebooksOptions& options) {
  const auto& label = options.label();
  TORCH_CHECK_VALUE(options.iterations() >= 0, label,
                    ": expected iterations to be at least 0, but got ", options.iterations());
  TORCH_CHECK_VALUE(options.beam() >= 1, label, ": expected beam_size to be at least 1, but got ",
                    options.beam());
  detail::check_non_negative(label.c_str(), "tolerance", options.tolerance());
  detail::check_non_negative(label.c_str(), "noise", options.noise());
  detail::check_positive(label.c_str(), "ridge", options.ridge());
}

}  // namespace

void check_refine(int64_t dim, at::TensorList codebooks, const RefineCodebooksOptions& options) {
  check_levels(dim, codebooks, options.label());
  check_numbers(options);
}

void check_rows(int64_t rows, at::TensorList codebooks, const RefineCodebooksOptions& options) {
  int64_t most = 0;
  for (const auto& codebook : codebooks) most = std::max(most, codebook.size(0));
  TORCH_CHECK_VALUE(rows >= most, options.label(), ": expected tokens to hold at least ", most,
                    " finite vectors, as many as a level has codes, but got ", rows);
}

std::string description_of(at::TensorList codebooks, const RefineCodebooksOptions& options) {
  auto text = c10::str("beam ", options.beam(), ", iterations ", options.iterations(),
                       ", tolerance ", options.tolerance(), ", noise ", options.noise(), ", seed ",
                       options.seed(), ", ridge ", options.ridge(), ", memory ", options.memory(),
                       ", weights ", options.weights(), ", codebooks");
  for (const auto& codebook : codebooks) text += c10::str(" ", codebook.sizes());
  return text;
}

int64_t annealed_refits(const RefineCodebooksOptions& options) {
  return options.noise() == 0 ? 0 : options.iterations() * 3 / 4;
}

}  // namespace torchvq::functional
