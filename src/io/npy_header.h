// The header of a .npy file: magic, version, and a Python dictionary literal.
#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

#include "io/array_layout.h"
#include "io/input_file.h"

namespace torchvq::io {

bool has_npy_magic(const InputFile& file);

/// Reads and checks the header, including that the file is long enough for its array.
ArrayLayout read_npy_header(const InputFile& file);

/// Magic, version 1.0 and dictionary, padded so that the data begins on a 64-byte boundary.
std::string make_npy_header(c10::ScalarType dtype, const std::vector<int64_t>& shape);

}  // namespace torchvq::io
