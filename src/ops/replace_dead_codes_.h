// Argument checks of replace_dead_codes_, called by every kernel.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include <ATen/core/Tensor.h>

#include "detail/dead_codes.h"

namespace torchvq::detail {

/// Several codebooks and their tokens, a tensor each in every list.
struct CodebooksWithTokens {
  at::TensorList embed;
  at::TensorList embed_avg;
  at::TensorList cluster_size;
  at::TensorList x;
  at::TensorList counts;
  at::TensorList rng;
  at::TensorList mask;  ///< may be empty

  [[nodiscard]] size_t size() const { return embed.size(); }
  [[nodiscard]] DeadCodeState state(size_t codebook) const {
    return {embed[codebook], embed_avg[codebook], cluster_size[codebook]};
  }
  [[nodiscard]] std::optional<at::Tensor> mask_of(size_t codebook) const {
    return mask.empty() ? std::nullopt : std::optional(mask[codebook]);
  }
};

/// Checks that there is a codebook, and that each has an entry in every other list.
void check_lists_of_codebooks(const char* op, at::TensorList embed,
                              std::initializer_list<std::pair<const char*, at::TensorList>> others);

/// Checks the parameters.
void check_dead_code_rules(const char* op, const DeadCodeArguments& arguments);

/// Checks the state and the parameters; shared with replace_with_candidates_.
void check_dead_code_state(const char* op, const DeadCodeState& state, const at::Tensor& counts,
                           const DeadCodeArguments& arguments);

/// Checks one codebook. Returns whether the metric is cosine.
bool check_replace_dead_codes_(const DeadCodeState& state, const at::Tensor& x,
                               const at::Tensor& counts, const at::Tensor& rng,
                               const std::optional<at::Tensor>& mask,
                               const DeadCodeArguments& arguments, std::string_view metric);

/// Checks several.
bool check_replace_dead_codes_(const CodebooksWithTokens& codebooks,
                               const DeadCodeArguments& arguments, std::string_view metric);

}  // namespace torchvq::detail
