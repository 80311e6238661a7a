// The codes of a codebook as functional::decode_indices() takes them.
#pragma once

#include <utility>
#include <vector>

#include <torchvq/modules/codebook.h>

namespace torchvq::detail {

/// The codes (H, K, D), and the affine map that decoding applies to those it looks up, if any.
inline std::pair<at::Tensor, std::vector<at::Tensor>> decoding_codes(CodebookImpl& codebook) {
  const auto& options = codebook.options;
  if (options.affine_param() && options.vq_bridge().is_empty()) {
    return {codebook.checked_embed(),
            {codebook.batch_mean, codebook.batch_variance, codebook.codebook_mean,
             codebook.codebook_variance}};
  }
  return {codebook.codes(), {}};
}

}  // namespace torchvq::detail
