// Codes of the cosine metric become unit vectors. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/code_rows.h"
#include "kernels/root.h"

namespace torchvq::kernels {

/// Makes codes unit vectors, as write_code() does, a few at a time: a norm is a chain of additions,
/// each of which waits for the one before.
class UnitCodes {
 public:
  UnitCodes(const CodeRowsKernel& rows, int64_t dim) : rows_(rows), dim_(dim) {}

  void add(float* code) {
    codes_[count_++] = code;
    if (count_ == kTogether) finish();
  }

  /// To be called after the last code.
  void finish() {
    double squares[kTogether] = {};
    if (count_ == kTogether) {
      for (int64_t d = 0; d < dim_; ++d) {
        for (size_t i = 0; i < kTogether; ++i) squares[i] += square(codes_[i][d]);
      }
    } else {
      for (size_t i = 0; i < count_; ++i) {
        for (int64_t d = 0; d < dim_; ++d) squares[i] += square(codes_[i][d]);
      }
    }
    for (size_t i = 0; i < count_; ++i) {
      // A step of -0 leaves every number as it is, even -0; then comes the division.
      const double norm = squares[i] > 0 ? square_root(squares[i]) : 0;
      if (norm > 0) rows_.decay(-0.0, norm, dim_, codes_[i], codes_[i]);
    }
    count_ = 0;
  }

 private:
  static constexpr size_t kTogether = 8;

  static double square(float value) { return static_cast<double>(value) * value; }

  const CodeRowsKernel& rows_;
  int64_t dim_;
  float* codes_[kTogether];
  size_t count_ = 0;
};

}  // namespace torchvq::kernels
