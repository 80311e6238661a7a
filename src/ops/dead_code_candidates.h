// Argument checks of dead_code_candidates, called by every kernel.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Checks tokens and generator; shared with replace_dead_codes_.
void check_candidate_source(const char* op, const at::Tensor& x, const at::Tensor& rng,
                            const std::optional<at::Tensor>& mask);

/// Returns whether the metric is cosine.
bool check_dead_code_candidates(const at::Tensor& x, const at::Tensor& rng, int64_t count,
                                const std::optional<at::Tensor>& mask, std::string_view metric);

}  // namespace torchvq::detail
