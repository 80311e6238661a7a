// Reads bytes of a file into a tensor with memory of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "io/array_layout.h"
#include "io/input_file.h"

namespace torchvq::io {

/// Elements [first, first + count) in file order as a 1-D tensor in the file's dtype and native
/// byte order.
at::Tensor read_elements(const InputFile& file, const ArrayLayout& layout, int64_t first,
                         int64_t count);

/// The whole array in its shape.
at::Tensor read_array(const InputFile& file, const ArrayLayout& layout);

}  // namespace torchvq::io
