#include "detail/product_dtype.h"

#include <cstdlib>
#include <string_view>

#include <ATen/Context.h>
#include <ATen/ops/mm.h>

namespace torchvq::detail {
namespace {

/// All other settings of torch are less precise than IEEE: TF32, BF16, and
/// BF16X9 in newer versions.
bool reduced(at::Float32Backend backend) {
  const auto precision = at::globalContext().float32Precision(backend, at::Float32Op::MATMUL);
  return precision != at::Float32Precision::NONE && precision != at::Float32Precision::IEEE;
}

bool is_set(const char* variable) {
  const char* text = std::getenv(variable);
  const std::string_view value = text == nullptr ? "" : text;
  return !value.empty() && value != "0";
}

bool emulated(const char* variable, at::Device device) {
  return device.is_cuda() && is_set(variable);
}

}  // namespace

std::optional<at::ScalarType> product_dtype(at::ScalarType dtype, at::Device device) {
  if (device.is_mps()) return dtype;  // has no other arithmetic, and no float64
  if (dtype == at::kFloat && !reduced(at::Float32Backend::CUDA) &&
      !reduced(at::Float32Backend::MKLDNN) && !emulated("CUBLAS_EMULATE_SINGLE_PRECISION", device))
    return at::kFloat;
  if (emulated("CUBLAS_EMULATE_DOUBLE_PRECISION", device)) return std::nullopt;
  return at::kDouble;
}

at::Tensor precise_mm(const at::Tensor& a, const at::Tensor& b) {
  // Emulated float64 is still more precise than float32.
  const auto dtype = product_dtype(a.scalar_type(), a.device()).value_or(at::kDouble);
  return at::mm(a.to(dtype), b.to(dtype)).to(a.scalar_type());
}

}  // namespace torchvq::detail
