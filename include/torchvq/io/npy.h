// NumPy's .npy files: one array each, in the format of numpy.save and numpy.load.
// Format: numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1.0, 2.0
// and 3.0.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>
#include <torchvq/io/output_file.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torchvq::io {

/// Loads a whole array into memory, so that later changes of the file do not affect the tensor; an
/// ArraySource (array_source.h) reads blocks of rows.
///
/// @param path  a .npy file holding booleans, integers or float16, float32, float64 numbers, of
///              either byte order, in C or Fortran order, of any shape.
/// @return      the array, on the CPU, in the file's dtype. A Fortran-order array gives a tensor
///              whose strides are in that order.
///
/// Empty        an axis of size 0 gives an empty tensor.
/// Throws       IoError when the file cannot be read; c10::ValueError when it is not a .npy file,
///              is truncated or malformed; c10::TypeError for other dtypes (complex, structured,
///              object).
/// Example      auto x = torchvq::io::load_npy("vectors.npy");
TORCHVQ_API at::Tensor load_npy(const std::string& path);

/// What the header of a .npy file says of its array.
struct NpyHeader {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  bool fortran_order;
};

/// Reads the header alone, of arrays in any order, which ArraySource may refuse.
///
/// Throws       as load_npy().
TORCHVQ_API NpyHeader load_npy_header(const std::string& path);

/// Writes `tensor` (any strides, device and shape) in C order, atomically (see OutputFile).
///
/// Throws       IoError when the file cannot be written; c10::TypeError for dtypes that the format
///              lacks (bfloat16, complex).
TORCHVQ_API void save_npy(const std::string& path, const at::Tensor& tensor);

/// Writes an array piece by piece, for results larger than memory. The file appears at `path` with
/// finish().
///
/// Example      NpyWriter codes("codes.npy", at::kLong, {rows});
///              for (...) codes.append(block);
///              codes.finish();
class TORCHVQ_API NpyWriter {
 public:
  NpyWriter(const std::string& path, at::ScalarType dtype, std::vector<int64_t> shape);

  /// Appends the elements of `piece` in C order; its dtype must be the writer's.
  void append(const at::Tensor& piece);

  /// Completes the file; throws c10::ValueError if the pieces do not add up to the shape.
  void finish();

 private:
  OutputFile file_;
  at::ScalarType dtype_;
  int64_t expected_;
  int64_t appended_ = 0;
};

}  // namespace torchvq::io
