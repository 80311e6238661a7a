// Indices that a caller gives: any integers, as in the Python package.
#pragma once

#include <limits>
#include <string>

#include <ATen/core/Tensor.h>

#include "detail/checks.h"

namespace torchvq::detail {

/// Indices as int64, the dtype that operators take. uint64 from 2^63 on becomes the largest int64,
/// out of range for every codebook.
///
/// Throws c10::TypeError for other dtypes than integers, bool among them, and for sparse tensors.
inline at::Tensor as_int64(const std::string& owner, const at::Tensor& indices) {
  check_defined(owner.c_str(), "indices", indices);
  check_strided(owner.c_str(), "indices", indices);
  const auto dtype = indices.scalar_type();
  if (dtype == at::kLong) return indices;
  TORCH_CHECK_TYPE(at::isIntegralType(dtype, /*includeBool=*/false), owner,
                   ": expected indices to be integers, but got ", dtype);
  const auto whole = indices.to(at::kLong);
  // The cast wraps them to negative numbers, among them -1, which would mean a token without a code.
  return dtype == at::kUInt64 ? whole.masked_fill(whole.lt(0), std::numeric_limits<int64_t>::max())
                              : whole;
}

}  // namespace torchvq::detail
