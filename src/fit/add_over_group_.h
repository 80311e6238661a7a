// Sums a measurement over the processes that share it.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/functional/reconstruction_error.h>

#include "distributed/group.h"

namespace torchvq::fit {

/// Replaces counts (K,), int64, and error by their sums over all ranks: one all-reduce, exact.
void add_over_group_(const distributed::Group& group, at::Tensor& counts,
                     functional::ReconstructionError& error);

}  // namespace torchvq::fit
