#include "io/safetensors_dtypes.h"

#include <array>
#include <utility>

namespace torchvq::io {
namespace {

using c10::ScalarType;

constexpr std::array<std::pair<std::string_view, ScalarType>, 15> kSafetensorsDtypes = {{
    {"F64", ScalarType::Double},
    {"F32", ScalarType::Float},
    {"F16", ScalarType::Half},
    {"BF16", ScalarType::BFloat16},
    {"F8_E4M3", ScalarType::Float8_e4m3fn},
    {"F8_E5M2", ScalarType::Float8_e5m2},
    {"I64", ScalarType::Long},
    {"I32", ScalarType::Int},
    {"I16", ScalarType::Short},
    {"I8", ScalarType::Char},
    {"U64", ScalarType::UInt64},
    {"U32", ScalarType::UInt32},
    {"U16", ScalarType::UInt16},
    {"U8", ScalarType::Byte},
    {"BOOL", ScalarType::Bool},
}};

}  // namespace

std::optional<ScalarType> safetensors_dtype(std::string_view name) {
  for (const auto& [known, dtype] : kSafetensorsDtypes) {
    if (name == known) return dtype;
  }
  return std::nullopt;
}

std::string_view safetensors_name(ScalarType dtype) {
  for (const auto& [name, known] : kSafetensorsDtypes) {
    if (dtype == known) return name;
  }
  return {};
}

}  // namespace torchvq::io
