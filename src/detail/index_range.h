// The range of indices, where their values can be read.
#pragma once

#include <cstdint>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/ops/aminmax.h>
#include <c10/util/Exception.h>

namespace torchvq::detail {

/// Throws c10::IndexError unless indices on the CPU are in [least, size). Other devices report an
/// index outside in their own lookup, so no synchronisation is needed here.
inline void check_index_range(const char* op, const char* name, const at::Tensor& indices,
                              int64_t size, int64_t least = -1) {
  if (!indices.is_cpu() || indices.numel() == 0) return;
  const auto [lowest, highest] = at::aminmax(indices);
  const auto low = lowest.item<int64_t>(), high = highest.item<int64_t>();
  TORCH_CHECK_INDEX(low >= least && high < size, op, ": expected ", name, " to be in [", least,
                    ", ", size, "), but got ", low < least ? low : high);
}

}  // namespace torchvq::detail
