// The two sums over ranks: one without a gradient, and one with.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/distributed/sync.h>
#include <torchvq/export.h>

namespace torchvq::distributed {

/// Sum of a statistic over the ranks. No gradient.
///
/// @param x  any shape, the same on all ranks; integer or floating point.
TORCHVQ_API at::Tensor all_reduce_statistics(const at::Tensor& x, const SyncOptions& options = {});

/// Sum over the ranks, through which gradients flow to the tokens of every rank.
///
/// Formula   y = sum over ranks r of x_r;   Gradient   grad x = sum over ranks r of grad y_r
///
/// If every rank computes the same loss L(y), its gradient is W times that of one process, because
/// each of the W ranks adds its own L. Data-parallel wrappers (DDP, FSDP) average gradients over
/// ranks, and the average is exactly the gradient of one process on the whole batch. Without such a
/// wrapper divide the loss, or the gradients of the parameters, by W.
///
/// @param x  floating point, any shape, the same on all ranks.
/// Every rank must run the backward, and in the same order; differentiable any number of times.
TORCHVQ_API at::Tensor all_reduce_differentiable(const at::Tensor& x,
                                                 const SyncOptions& options = {});

}  // namespace torchvq::distributed
