// How far decoded vectors are from the originals, over any number of blocks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>

#include <cstdint>

namespace torchvq::functional {

/// Adds up the squared error of vectors that come a block at a time.
///
/// Formula   mse      = sum (x - decoded)^2 / (N * D)
///           relative = sum (x - decoded)^2 / sum x^2
///
/// Precision    float64. The sums run in row order, so the split into blocks does not change a bit.
/// Empty        without vectors (for relative_error: without a vector that is not zero) the result
/// is NaN. Example      ReconstructionError error; error.add(x, decoded); error.mse();
class TORCHVQ_API ReconstructionError {
 public:
  /// @param x, decoded  (N, D), same shape, floating point, CPU.
  /// Throws c10::ValueError when the shapes differ.
  void add(const at::Tensor& x, const at::Tensor& decoded);

  int64_t vectors() const { return vectors_; }
  double mse() const;
  double relative_error() const;

 private:
  int64_t vectors_ = 0;
  int64_t elements_ = 0;
  double squared_error_ = 0;
  double squared_norm_ = 0;
};

}  // namespace torchvq::functional
