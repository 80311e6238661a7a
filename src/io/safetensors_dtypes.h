// Names of dtypes in safetensors headers.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

namespace torchvq::io {

std::optional<c10::ScalarType> safetensors_dtype(std::string_view name);

/// Empty if the format has no such dtype.
std::string_view safetensors_name(c10::ScalarType dtype);

}  // namespace torchvq::io
