// Second half of replace_dead_codes_() for several ranks: all change their state in the same way.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>
#include <torchvq/ops/replace_dead_codes_.h>

namespace torchvq::ops {

/// Replaces dead codes by candidates of one or more calls of dead_code_candidates(), concatenated
/// on axis 1.
///
/// @param keys  (H, C), int64, C >= 1.
/// @param rows  (H, C, D), float32 or float64.
/// Everything else is as for replace_dead_codes_(); options.metric has no effect here.
TORCHVQ_API at::Tensor replace_with_candidates_(at::Tensor embed, at::Tensor embed_avg,
                                                at::Tensor cluster_size, const at::Tensor& keys,
                                                const at::Tensor& rows, const at::Tensor& counts,
                                                const at::Tensor& rng,
                                                const DeadCodeOptions& options = {});

/// The same for several codebooks, as replace_dead_codes_() of lists; numbers of candidates may
/// differ.
TORCHVQ_API at::Tensor replace_with_candidates_(at::TensorList embed, at::TensorList embed_avg,
                                                at::TensorList cluster_size, at::TensorList keys,
                                                at::TensorList rows, at::TensorList counts,
                                                at::TensorList rng,
                                                const DeadCodeOptions& options = {});

}  // namespace torchvq::ops
