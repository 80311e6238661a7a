// Sorts tokens by code with a counting sort, and finds the exponents of their fixed-point sums.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include "kernels/cpu/row_magnitude.h"
#include "kernels/exponents.h"

namespace torchvq::detail {

constexpr int64_t kSummedPerTask = 1 << 16;  // elements

/// Tokens and codes of all heads, numbered consecutively: row = h * N + n, slot = h * K + k.
struct TokenSlots {
  explicit TokenSlots(int64_t rows)
      : slots(static_cast<size_t>(rows)), exponents(static_cast<size_t>(rows)) {}

  std::vector<int64_t> slots;      // per row; -1: the token does not count
  std::vector<int32_t> exponents;  // per row
};

struct TokenOrder {
  std::vector<int64_t> rows;    // rows that count, by ascending slot
  std::vector<int64_t> starts;  // per slot, and one past the end
};

inline void fill_slots(const char* op, const at::Tensor& indices, const bool* mask, int64_t size,
                       std::vector<int64_t>& slots) {
  const auto* index = indices.const_data_ptr<int64_t>();
  const int64_t tokens = indices.size(1);
  // Head by head: a division per row to find its head takes longer than all the rest.
  for (int64_t first = 0, head = 0; first < indices.numel(); first += tokens, ++head) {
    for (int64_t row = first; row < first + tokens; ++row) {
      const bool present = index[row] != -1 && (mask == nullptr || mask[row]);
      TORCH_CHECK_INDEX(!present || (index[row] >= 0 && index[row] < size), op,
                        ": expected indices to be in [-1, ", size, "), but got ", index[row]);
      slots[row] = present ? head * size + index[row] : -1;
    }
  }
}

/// Finds the exponents of the rows; rows that are not finite, or too large, lose their slot.
template <typename T>
void fill_exponents(const T* x, int64_t dim, TokenSlots& tokens) {
  const auto rows = static_cast<int64_t>(tokens.slots.size());
  at::parallel_for(0, rows, std::max<int64_t>(1, kSummedPerTask / dim),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       if (tokens.slots[row] < 0) continue;
                       const auto magnitude = kernels::row_magnitude(x + row * dim, dim);
                       if (magnitude.finite && magnitude.value <= kernels::kLargestSummed) {
                         tokens.exponents[row] = kernels::exponent_of(magnitude.value);
                       } else {
                         tokens.slots[row] = -1;
                       }
                     }
                   });
}

inline void raise_exponents(const TokenSlots& tokens, const at::Tensor& given, at::Tensor& used) {
  const int64_t slots = given.numel();
  const auto* from = given.const_data_ptr<int32_t>();
  auto* to = used.mutable_data_ptr<int32_t>();
  std::vector<int32_t> largest(slots, kernels::kMinExponent);
  for (size_t row = 0; row < tokens.slots.size(); ++row) {
    const auto slot = tokens.slots[row];
    if (slot >= 0) largest[slot] = std::max(largest[slot], tokens.exponents[row]);
  }
  for (int64_t slot = 0; slot < slots; ++slot) {
    const auto exponent = kernels::clamp_exponent(from[slot]);
    to[slot] = largest[slot] > exponent + kernels::kHeadroomBits ? largest[slot] : exponent;
  }
}

inline TokenOrder sort_by_slot(const TokenSlots& tokens, at::Tensor& counts) {
  const int64_t slots = counts.numel();
  auto* count = counts.mutable_data_ptr<int64_t>();
  for (const auto slot : tokens.slots) {
    if (slot >= 0) ++count[slot];
  }
  TokenOrder order;
  order.starts.resize(slots + 1, 0);
  for (int64_t slot = 0; slot < slots; ++slot)
    order.starts[slot + 1] = order.starts[slot] + count[slot];
  order.rows.resize(order.starts[slots]);
  auto next = order.starts;
  for (size_t row = 0; row < tokens.slots.size(); ++row) {
    const auto slot = tokens.slots[row];
    if (slot >= 0) order.rows[next[slot]++] = static_cast<int64_t>(row);
  }
  return order;
}

}  // namespace torchvq::detail
