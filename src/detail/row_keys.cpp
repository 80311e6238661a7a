#include "detail/row_keys.h"

#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>

#include "detail/codebook_average.h"
#include "detail/precision.h"
#include "detail/random_key.h"
#include "detail/random_tensor.h"
#include "kernels/cpu/row_hash.h"
#include "kernels/cpu/row_magnitude.h"

namespace torchvq::detail {
namespace {

constexpr int64_t kElementsPerTask = 1 << 16;

struct HashNumbers {
  at::Tensor multipliers;  // (D,), odd
  at::Tensor salts;        // (H,)
};

HashNumbers hash_numbers(const at::Tensor& rows, const at::Tensor& rng, RandomPurpose purpose) {
  const auto key = random_key(rng, static_cast<int64_t>(purpose));
  return {random_bits(key, at::arange(rows.size(2), rng.options())).bitwise_or(1),
          random_bits(key, at::arange(rows.size(0), rng.options()).add(1).neg())};
}

/// The same numbers for the CPU, where some thirty tensor operators take longer than the hashes.
struct HostHashNumbers {
  HostHashNumbers(const at::Tensor& rows, const at::Tensor& rng, RandomPurpose purpose) {
    const auto key = read_key(rng, static_cast<int64_t>(purpose), 0);
    for (int64_t d = 0; d < rows.size(2); ++d) {
      multipliers.push_back(kernels::random_bits(key, static_cast<uint64_t>(d)) | 1);
    }
    for (int64_t h = 0; h < rows.size(0); ++h) {
      salts.push_back(kernels::random_bits(key, ~static_cast<uint64_t>(h)));
    }
  }

  std::vector<uint64_t> multipliers;  // odd
  std::vector<uint64_t> salts;
};

enum class Rows { kAll, kFinite, kFiniteNonzero };

template <typename T>
bool has_key(const T* row, int64_t dim, Rows wanted) {
  if (wanted == Rows::kAll) return true;
  const auto magnitude = kernels::row_magnitude(row, dim);
  return magnitude.finite && (wanted == Rows::kFinite || magnitude.value != 0);
}

template <typename T>
void fill_keys(const at::Tensor& rows, const HostHashNumbers& numbers, Rows wanted,
               at::Tensor& keys) {
  const int64_t count = rows.size(1), dim = rows.size(2);
  const auto* from = rows.const_data_ptr<T>();
  auto* to = keys.mutable_data_ptr<int64_t>();
  at::parallel_for(
      0, keys.numel(), std::max<int64_t>(1, kElementsPerTask / dim),
      [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
          const auto hash = kernels::row_hash(from + row * dim, numbers.multipliers.data(), dim);
          const auto salt = numbers.salts[static_cast<size_t>(row / count)];
          to[row] =
              has_key(from + row * dim, dim, wanted) ? kernels::key_of_hash(hash, salt) : kNoKey;
        }
      });
}

at::Tensor cpu_keys(const at::Tensor& rows_, const HostHashNumbers& numbers, Rows wanted) {
  const auto rows = rows_.contiguous();
  auto keys = at::empty({rows.size(0), rows.size(1)}, rows.options().dtype(at::kLong));
  if (rows.scalar_type() == at::kDouble) {
    fill_keys<double>(rows, numbers, wanted, keys);
  } else {
    fill_keys<float>(rows, numbers, wanted, keys);
  }
  return keys;
}

at::Tensor any_keys(const at::Tensor& rows, const HashNumbers& numbers) {
  const bool wide = rows.scalar_type() == at::kDouble;
  auto sums = at::empty({rows.size(0), rows.size(1)}, numbers.multipliers.options());
  const int64_t chunk =
      std::max<int64_t>(1, (int64_t{1} << 26) / std::max<int64_t>(1, rows.size(0) * rows.size(2)));
  for (int64_t begin = 0; begin < rows.size(1); begin += chunk) {
    const auto part = rows.narrow(1, begin, std::min(chunk, rows.size(1) - begin)).contiguous();
    const auto words = wide ? mix_bits(part.view(at::kLong)) : part.view(at::kInt).to(at::kLong);
    const auto bits = words.masked_fill(part.eq(0), 0);
    sums.narrow(1, begin, part.size(1)).copy_((bits * numbers.multipliers).sum(-1));
  }
  const auto mixed = mix_bits(sums + numbers.salts.unsqueeze(-1));
  return mixed.bitwise_right_shift(1).bitwise_and(kNoKey);
}

}  // namespace

at::Tensor row_keys(const at::Tensor& rows, const at::Tensor& rng, RandomPurpose purpose) {
  return rows.is_cpu() ? cpu_keys(rows, {rows, rng, purpose}, Rows::kAll)
                       : row_keys_by_operators(rows, rng, purpose);
}

at::Tensor candidate_keys(const at::Tensor& rows, const at::Tensor& rng,
                          const std::optional<at::Tensor>& mask, bool nonzero) {
  constexpr auto purpose = RandomPurpose::kDeadCodeCandidates;
  if (rows.is_cpu()) {
    const auto wanted = nonzero ? Rows::kFiniteNonzero : Rows::kFinite;
    auto keys = cpu_keys(rows, {rows, rng, purpose}, wanted);
    return mask ? keys.masked_fill_(mask->logical_not(), kNoKey) : keys;
  }
  auto usable = usable_rows(rows, mask);
  if (nonzero) usable = usable.logical_and(rows.ne(0).any(-1));
  return row_keys_by_operators(rows, rng, purpose).masked_fill_(usable.logical_not(), kNoKey);
}

at::Tensor row_keys_by_operators(const at::Tensor& rows, const at::Tensor& rng,
                                 RandomPurpose purpose) {
  return any_keys(rows, hash_numbers(rows, rng, purpose));
}

at::Tensor usable_rows(const at::Tensor& rows, const std::optional<at::Tensor>& mask) {
  const auto finite = rows.isfinite().all(-1);
  return mask.has_value() ? finite.logical_and(*mask) : finite;
}

std::pair<at::Tensor, at::Tensor> sort_distinct(const at::Tensor& keys) {
  auto [sorted, positions] = at::sort(keys, /*stable=*/true, /*dim=*/1, /*descending=*/false);
  const int64_t count = keys.size(1);
  if (count > 1) {
    const auto repeated = sorted.narrow(1, 1, count - 1).eq(sorted.narrow(1, 0, count - 1));
    sorted = sorted.clone();
    sorted.narrow(1, 1, count - 1).masked_fill_(repeated, kNoKey);
  }
  return {sorted, positions};
}

at::Tensor rows_as_codes(const at::Tensor& x, bool unit) {
  const auto dtype = compute_dtype(x);
  const auto rows = x.to(dtype);
  return unit ? unit_rows(rows).to(dtype) : rows;
}

}  // namespace torchvq::detail
