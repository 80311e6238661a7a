// Gradients of a mean over the tokens of all ranks.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::functional {

/// The gradients of a mean over the tokens of all ranks, from those of each rank's own mean.
///
/// Formula      sum over ranks of n_r g_r / sum over ranks of n_r, with n_r the tokens of a rank
///
/// @param gradients  any number of floating-point tensors, of the same shapes on all ranks.
/// @param tokens     (H, T, D), this rank's; only their shape and dtype are read; the sum is in
///                   float32, of float64 tokens in float64.
/// @param mask       (H, T), bool; True marks a real token. Default: all real.
/// @return           new tensors like gradients. Without a group, or without gradients: copies, and
///                   nothing is sent; otherwise one all-reduce. No gradient. No token on any rank:
///                   zeros.
TORCHVQ_API std::vector<at::Tensor> average_gradients(at::TensorList gradients,
                                                      const at::Tensor& tokens,
                                                      const std::optional<at::Tensor>& mask,
                                                      const distributed::SyncOptions& options = {});

}  // namespace torchvq::functional
