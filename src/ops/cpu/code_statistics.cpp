// CPU: tokens are put in the order of their codes by a counting sort, and the ordered tokens are
// split evenly over threads. A code whose tokens fall into two parts is finished by atomic
// additions, which have no order either. Memory: O(N + K * D), whatever the number of threads.
#include "ops/code_statistics.h"

#include <atomic>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "detail/untouched_zeros.h"
#include "kernels/cpu/fixed_point_sum.h"
#include "kernels/cpu/row_magnitude.h"
#include "kernels/exponents.h"

namespace torchvq {
namespace {

constexpr int64_t kSummedPerTask = 1 << 16;
// A page that is touched for the first time costs as much as zeros in so many.
constexpr int64_t kPagesOfZeros = 4;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kManyBytes = 1 << 20;

/// Tokens and codes of all heads in one numbering: row = h * N + n, slot = h * K + k.
struct Tokens {
  std::vector<int64_t> slots;      // per row; -1 where the token is left out
  std::vector<int32_t> exponents;  // per row
};

struct Order {
  std::vector<int64_t> rows;    // rows that count, by rising slot
  std::vector<int64_t> starts;  // per slot, and one past the end
};

void fill_slots(const at::Tensor& indices, const bool* mask, int64_t size,
                std::vector<int64_t>& slots) {
  const auto* index = indices.const_data_ptr<int64_t>();
  const int64_t tokens = indices.size(1);
  for (int64_t row = 0; row < indices.numel(); ++row) {
    const bool present = index[row] != -1 && (mask == nullptr || mask[row]);
    TORCH_CHECK_INDEX(!present || (index[row] >= 0 && index[row] < size),
                      "code_statistics: expected indices to be in [-1, ", size, "), but got ",
                      index[row]);
    slots[row] = present ? (row / tokens) * size + index[row] : -1;
  }
}

/// Exponents of the rows; rows that are not finite lose their slot.
template <typename T>
void fill_exponents(const T* x, int64_t dim, Tokens& tokens) {
  const auto rows = static_cast<int64_t>(tokens.slots.size());
  at::parallel_for(0, rows, std::max<int64_t>(1, kSummedPerTask / dim),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       if (tokens.slots[row] < 0) continue;
                       const auto magnitude = kernels::row_magnitude(x + row * dim, dim);
                       if (magnitude.finite) {
                         tokens.exponents[row] = kernels::exponent_of(magnitude.value);
                       } else {
                         tokens.slots[row] = -1;
                       }
                     }
                   });
}

void raise_exponents(const Tokens& tokens, const at::Tensor& given, at::Tensor& used) {
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

Order sort_by_slot(const Tokens& tokens, at::Tensor& counts) {
  const int64_t slots = counts.numel();
  auto* count = counts.mutable_data_ptr<int64_t>();
  for (const auto slot : tokens.slots) {
    if (slot >= 0) ++count[slot];
  }
  Order order;
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

/// Whether most sums are left zero: few tokens, and nobody reads the sums of codes without.
bool touches_little(const Order& order, int64_t slots, int64_t dim) {
  const int64_t row = dim * static_cast<int64_t>(sizeof(int64_t)), bytes = slots * row;
  const int64_t touched = static_cast<int64_t>(order.rows.size()) * (row / kPageBytes + 2);
  return bytes >= kManyBytes && touched * kPagesOfZeros < bytes / kPageBytes;
}

void add_atomically(const std::vector<int64_t>& from, int64_t* to) {
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] != 0) std::atomic_ref<int64_t>(to[d]).fetch_add(from[d], std::memory_order_relaxed);
  }
}

/// Adds `count` rows into the sums of one code, kept apart until the end where `shared` with
/// another thread.
void add_segment(const float* x, int64_t dim, const int64_t* rows, int64_t count, double scale,
                 bool shared, int64_t* sums, int64_t*) {
  std::vector<int64_t> own(shared ? dim : 0, 0);
  kernels::add_rows_fixed_point(x, dim, rows, count, scale, shared ? own.data() : sums);
  if (shared) add_atomically(own, sums);
}

void add_segment(const double* x, int64_t dim, const int64_t* rows, int64_t count, double scale,
                 bool shared, int64_t* sums, int64_t* rests) {
  std::vector<int64_t> own(shared ? dim : 0, 0), own_rests(shared ? dim : 0, 0);
  kernels::add_rows_fixed_point(x, dim, rows, count, scale, shared ? own.data() : sums,
                                shared ? own_rests.data() : rests);
  if (shared) {
    add_atomically(own, sums);
    add_atomically(own_rests, rests);
  }
}

template <typename T>
void add_tokens(const T* x, int64_t dim, const Order& order, const at::Tensor& used,
                at::Tensor& sums) {
  const auto* exponent = used.const_data_ptr<int32_t>();
  auto* first = sums.mutable_data_ptr<int64_t>();
  const int64_t word = used.numel() * dim, total = static_cast<int64_t>(order.rows.size());
  at::parallel_for(
      0, total, std::max<int64_t>(1, kSummedPerTask / dim), [&](int64_t begin, int64_t end) {
        const auto& starts = order.starts;
        auto slot = std::upper_bound(starts.begin(), starts.end(), begin) - starts.begin() - 1;
        for (int64_t at = begin; at < end; ++slot) {
          const int64_t stop = std::min(end, starts[slot + 1]);
          if (stop == at) continue;
          const bool shared = starts[slot] < begin || starts[slot + 1] > end;
          const double scale = kernels::power_of_two(kernels::kUnitBits - exponent[slot]);
          int64_t* to = first + slot * dim;
          int64_t* rests = sums.size(0) == 2 ? to + word : nullptr;
          add_segment(x, dim, order.rows.data() + at, stop - at, scale, shared, to, rests);
          at = stop;
        }
      });
}

detail::CodeStatistics code_statistics(const at::Tensor& x_, const at::Tensor& indices_,
                                       const at::Tensor& exponents_,
                                       const std::optional<at::Tensor>& mask_) {
  detail::check_code_statistics(x_, indices_, exponents_, mask_);
  const bool wide = x_.scalar_type() == at::kDouble;
  const auto x = x_.to(wide ? at::kDouble : at::kFloat).contiguous();
  const auto indices = indices_.contiguous(), exponents = exponents_.contiguous();
  const auto mask = mask_.has_value() ? mask_->expand(indices.sizes()).contiguous() : at::Tensor();
  const int64_t heads = x.size(0), dim = x.size(2), size = exponents.size(1);

  Tokens tokens{std::vector<int64_t>(indices.numel()), std::vector<int32_t>(indices.numel())};
  fill_slots(indices, mask.defined() ? mask.const_data_ptr<bool>() : nullptr, size, tokens.slots);
  const auto run = [&](const auto* data) -> detail::CodeStatistics {
    auto counts = at::zeros({heads, size}, indices.options());
    auto used = at::empty({heads, size}, exponents.options());
    fill_exponents(data, dim, tokens);
    raise_exponents(tokens, exponents, used);
    const auto order = sort_by_slot(tokens, counts);
    const std::vector<int64_t> shape{detail::sum_words(x.scalar_type()), heads, size, dim};
    auto sums = touches_little(order, counts.numel(), dim) ? detail::untouched_zeros(shape)
                                                           : at::zeros(shape, indices.options());
    add_tokens(data, dim, order, used, sums);
    return {counts, sums, used};
  };
  return wide ? run(x.const_data_ptr<double>()) : run(x.const_data_ptr<float>());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("code_statistics", code_statistics); }

}  // namespace torchvq
