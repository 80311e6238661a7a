// The condition of codecs on the numbers that a file holds.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <c10/util/Exception.h>

#include <string>

namespace torchvq::io {

/// A tensor as float32. Throws c10::ValueError unless it is finite there, as readers demand.
inline at::Tensor finite_float(const char* op, const std::string& name, const at::Tensor& tensor) {
  auto numbers = tensor.to(at::kFloat);
  TORCH_CHECK_VALUE(at::isfinite(numbers).all().item<bool>(), op, ": expected ", name,
                    " to be finite in float32, but it holds NaN or infinity");
  return numbers;
}

}  // namespace torchvq::io
