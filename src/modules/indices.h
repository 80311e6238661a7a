// Indices that a caller gives: any integers, as in the Python package.
#pragma once

#include <limits>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

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

/// Indices (B, *, q) of a stack from those with the axis of its one codebook, (B, *, 1, q), if users
/// keep it.
inline at::Tensor without_codebook_axis(const char* owner, const at::Tensor& indices,
                                        bool has_axis) {
  if (!has_axis) return indices;
  check_defined(owner, "indices", indices);
  if (indices.dim() < 2) return indices;
  TORCH_CHECK_VALUE(indices.size(-2) == 1, owner,
                    ": expected indices to be of one codebook on the axis before the last, but got "
                    "shape ",
                    indices.sizes());
  return indices.squeeze(-2);
}

}  // namespace torchvq::detail
