// The error of decoded vectors, over any number of blocks.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>
#include <torchvq/functional/exact_sum.h>

#include <cstdint>

namespace torchvq::functional {

/// Adds up the squared error of vectors block by block.
///
/// Formula   mse      = sum (x - decoded)^2 / (N * D)
///           relative = sum (x - decoded)^2 / sum x^2
///
/// Precision    float64 for each row, whose elements are added in order; rows are added exactly, so
///              neither their order nor their split into blocks or processes changes a bit.
/// Empty        without vectors (for relative_error: without a vector that is not zero) the result
///              is NaN.
/// Example      ReconstructionError error; error.add(x, decoded); error.mse();
class TORCHVQ_API ReconstructionError {
 public:
  /// @param x, decoded  (N, D), same shape, floating point, CPU.
  /// Throws c10::ValueError when the shapes differ.
  void add(const at::Tensor& x, const at::Tensor& decoded);

  /// All of this as (kWords,), int64: the words of several errors, added up, are those of all
  /// their vectors.
  at::Tensor words() const;
  void set_words(const at::Tensor& words);

  int64_t vectors() const { return vectors_; }
  /// Sum over vectors of ||x - decoded||^2.
  double squared_error() const { return squared_error_.value(); }
  double mse() const;
  double relative_error() const;

 private:
  int64_t vectors_ = 0;
  int64_t elements_ = 0;
  ExactSum squared_error_;
  ExactSum squared_norm_;
};

}  // namespace torchvq::functional
