// Argument checks of replace_dead_codes_, called by every kernel.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "detail/dead_codes.h"

namespace torchvq::detail {

/// Parameters that define dead codes, and the state that replaced codes get.
struct DeadCodeArguments {
  double threshold;
  double threshold_fraction;
  double reset_cluster_size;
  int64_t cooldown_steps;
};

/// Checks the state and the parameters; shared with replace_with_candidates_.
void check_dead_code_state(const char* op, const CodebookState& state, const at::Tensor& counts,
                           const DeadCodeArguments& arguments);

/// Returns whether the metric is cosine.
bool check_replace_dead_codes_(const CodebookState& state, const at::Tensor& x,
                               const at::Tensor& counts, const at::Tensor& rng,
                               const std::optional<at::Tensor>& mask,
                               const DeadCodeArguments& arguments, std::string_view metric);

}  // namespace torchvq::detail
