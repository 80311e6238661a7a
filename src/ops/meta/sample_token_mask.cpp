#include "ops/sample_token_mask.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor sample_token_mask(const at::Tensor& rng, c10::SymInt tokens, double fraction,
                             const std::optional<at::Tensor>& mask) {
  detail::check_sample_token_mask(rng, tokens, fraction, mask);
  const auto options = rng.options().dtype(at::kBool);
  return mask.has_value() ? mask->new_empty_symint(mask->sym_sizes(), options)
                          : rng.new_empty_symint({tokens}, options);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("sample_token_mask", sample_token_mask); }

}  // namespace torchvq
