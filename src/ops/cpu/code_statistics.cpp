// CPU: a counting sort orders the tokens by code, and the ordered tokens are divided evenly among
// threads. Threads that share a code add their parts of its sum atomically, which is exact in any
// order. Memory: O(N + K * D), for any number of threads.
#include "ops/code_statistics.h"

#include <atomic>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "detail/untouched_zeros.h"
#include "kernels/cpu/fixed_point_sum.h"
#include "kernels/exponents.h"
#include "ops/cpu/token_order.h"

namespace torchvq {
namespace {

// Touching a page for the first time costs as much as clearing this many pages.
constexpr int64_t kPagesOfZeros = 4;
constexpr int64_t kPageBytes = 4096;
constexpr int64_t kManyBytes = 1 << 20;

/// Whether most sums stay zero because there are few tokens; sums of codes
/// without tokens are not read.
bool touches_little(const detail::TokenOrder& order, int64_t slots, int64_t dim) {
  const int64_t row = dim * static_cast<int64_t>(sizeof(int64_t)), bytes = slots * row;
  const int64_t touched = static_cast<int64_t>(order.rows.size()) * (row / kPageBytes + 2);
  return bytes >= kManyBytes && touched * kPagesOfZeros < bytes / kPageBytes;
}

void add_atomically(const std::vector<int64_t>& from, int64_t* to) {
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] != 0) std::atomic_ref<int64_t>(to[d]).fetch_add(from[d], std::memory_order_relaxed);
  }
}

/// Adds `count` rows to the sums of one code; if they are `shared` with another thread, accumulates
/// locally and adds once at the end.
void add_segment(const float* x, int64_t dim, const int64_t* rows, int64_t count, double scale,
                 bool shared, int64_t* sums, int64_t* /*rests*/) {
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
void add_tokens(const T* x, int64_t dim, const detail::TokenOrder& order, const at::Tensor& used,
                at::Tensor& sums) {
  const auto* exponent = used.const_data_ptr<int32_t>();
  auto* first = sums.mutable_data_ptr<int64_t>();
  const int64_t word = used.numel() * dim, total = static_cast<int64_t>(order.rows.size());
  at::parallel_for(
      0, total, std::max<int64_t>(1, detail::kSummedPerTask / dim),
      [&](int64_t begin, int64_t end) {
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

detail::StatisticsTensors code_statistics(const at::Tensor& x_, const at::Tensor& indices_,
                                          const at::Tensor& exponents_,
                                          const std::optional<at::Tensor>& mask_) {
  detail::check_code_statistics(x_, indices_, exponents_, mask_);
  const bool wide = x_.scalar_type() == at::kDouble;
  const auto x = x_.to(wide ? at::kDouble : at::kFloat).contiguous();
  const auto indices = indices_.contiguous(), exponents = exponents_.contiguous();
  const auto mask = mask_.has_value() ? mask_->expand(indices.sizes()).contiguous() : at::Tensor();
  const int64_t heads = x.size(0), dim = x.size(2), size = exponents.size(1);

  detail::TokenSlots tokens(indices.numel());
  detail::fill_slots("code_statistics", indices,
                     mask.defined() ? mask.const_data_ptr<bool>() : nullptr, size, tokens.slots);
  const auto run = [&](const auto* data) -> detail::StatisticsTensors {
    auto counts = at::zeros({heads, size}, indices.options());
    auto used = at::empty({heads, size}, exponents.options());
    detail::fill_exponents(data, dim, tokens);
    detail::raise_exponents(tokens, exponents, used);
    const auto order = detail::sort_by_slot(tokens, counts);
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
