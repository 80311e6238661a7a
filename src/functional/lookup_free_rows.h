// The part of a lookup-free step that quantizers and levels of stacks share.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/lookup_free_quantize.h>
#include <torchvq/ops/sign_step.h>

namespace torchvq::functional {

/// The mask of a step in which padding is absent. The reference quantizes it as well.
std::optional<at::Tensor> absent_where(const LookupFreeArguments& arguments,
                                       const LookupFreeOptions& options);

/// Whether one operator can compute signs and losses: not with the reference's order of operations,
/// and not if a function is applied between terms and loss.
bool steps_at_once(const LookupFreeOptions& options);

/// The options of that operator.
ops::SignStepOptions sign_step_options(const LookupFreeOptions& options);

/// The masks of a step with these latents (C, T, D); the rest is left undefined.
LookupFreeSigns masks_of(const LookupFreeArguments& arguments, const LookupFreeOptions& options,
                         const at::Tensor& latents);

/// lookup_free_quantize() of rows (C, T, D), float32 or float64. Output and indices are rows as
/// well, and padding is not absent from them.
LookupFreeStep quantize_rows(const at::Tensor& rows, const LookupFreeArguments& arguments,
                             const LookupFreeOptions& options,
                             const std::optional<at::Tensor>& totals = std::nullopt);

}  // namespace torchvq::functional
