// Arrays in files, read in blocks of rows, so that a file may be larger than memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace torchvq::io {

struct ArrayLayout;
class InputFile;

enum class FileFormat { kNpy, kSafetensors };

/// Recognises the format by the first bytes of the file, not by its name.
///
/// Throws       c10::ValueError for any other format, IoError when the file cannot be read.
TORCHVQ_API FileFormat file_format(const std::string& path);

/// One array of a .npy or .safetensors file; the format is recognised by the file's first bytes.
///
/// The array counts as a matrix: its last axis is a row, its leading axes (in C order) number the
/// rows; a 1-D array has rows of one element. read() copies only the requested rows: if the file is
/// truncated or rewritten later, returned tensors do not change.
///
/// Throws       IoError, c10::ValueError and c10::TypeError as load_npy and SafetensorsFile do.
class TORCHVQ_API ArraySource {
 public:
  /// @param name  the tensor of a .safetensors file; may be empty if there is only one. Must be
  ///              empty for .npy.
  explicit ArraySource(const std::string& path, const std::string& name = "");
  ~ArraySource();
  ArraySource(ArraySource&&) noexcept;

  const std::string& path() const;
  at::ScalarType dtype() const;
  const std::vector<int64_t>& shape() const;
  bool fortran_order() const;
  int64_t rows() const { return rows_; }
  int64_t row_length() const { return row_length_; }

  /// Rows [first, first + count), (count, row_length()), in the file's dtype. Safe to call from
  /// several threads. Throws c10::ValueError if the file was truncated after it was opened.
  at::Tensor read(int64_t first, int64_t count) const;

  /// Elements [first, first + count) of an array in C order, (count,), as read() otherwise: for
  /// rows larger than a block.
  at::Tensor read_flat(int64_t first, int64_t count) const;

 private:
  at::Tensor read_columns(int64_t first, int64_t count) const;

  std::unique_ptr<InputFile> file_;
  std::unique_ptr<ArrayLayout> layout_;
  int64_t rows_ = 1;
  int64_t row_length_ = 1;
};

/// An array of vectors: floating point, with at least two axes of which the last is the vector.
class TORCHVQ_API VectorSource {
 public:
  explicit VectorSource(const std::string& path, const std::string& name = "");

  const ArraySource& array() const { return array_; }
  int64_t rows() const { return array_.rows(); }
  int64_t dim() const { return array_.row_length(); }

  /// Vectors [first, first + count) as (count, dim), in `dtype`: float32 or float64.
  ///
  /// Throws       c10::ValueError naming the first vector that holds NaN or infinity after that
  ///              conversion.
  at::Tensor read(int64_t first, int64_t count, at::ScalarType dtype = at::kFloat) const;

 private:
  ArraySource array_;
};

/// An array of indices: any integer dtype, at least one axis.
class TORCHVQ_API IndexSource {
 public:
  explicit IndexSource(const std::string& path, const std::string& name = "");

  const ArraySource& array() const { return array_; }
  int64_t rows() const { return array_.rows(); }
  int64_t row_length() const { return array_.row_length(); }

  /// Rows [first, first + count) as (count, row_length), int64.
  ///
  /// Throws       c10::ValueError naming the first index of 2^63 or more (dtype uint64).
  at::Tensor read(int64_t first, int64_t count) const;

  /// Elements [first, first + count), as ArraySource::read_flat() reads them.
  at::Tensor read_flat(int64_t first, int64_t count) const;

 private:
  ArraySource array_;
};

}  // namespace torchvq::io
