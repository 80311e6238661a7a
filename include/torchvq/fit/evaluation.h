// The result of measuring a codec on vectors.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/functional/reconstruction_error.h>

#include <vector>

namespace torchvq::fit {

/// The result of evaluate_stack(), evaluate_projected() and evaluate_scalar(): of the vectors of
/// all processes that share them.
struct Evaluation {
  /// Per column of the codes (K,), int64: vectors per code. Empty if there are too many codes to
  /// count.
  std::vector<at::Tensor> counts;
  functional::ReconstructionError error;  ///< between vectors and what their codes decode to
};

}  // namespace torchvq::fit
