#include "distributed/statistics_buffer.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/stack.h>

#include "detail/exponents.h"
#include "detail/fixed_point.h"
#include "kernels/exponents.h"

namespace torchvq::distributed {
namespace {

constexpr auto kWhat = "the statistics of the codes";

/// Concatenates tensors of the same dtype; Unpacker extracts them from the sum.
class Packer {
 public:
  void add(const at::Tensor& block) { blocks_.push_back(block.reshape({-1})); }

  [[nodiscard]] at::Tensor packed() const { return at::cat(blocks_); }

 private:
  std::vector<at::Tensor> blocks_;
};

/// Extracts copies: they become outputs of an operator, which must not share memory and which
/// compiled code expects to be aligned.
class Unpacker {
 public:
  explicit Unpacker(at::Tensor packed) : packed_(std::move(packed)) {}

  at::Tensor next(at::IntArrayRef shape) {
    const int64_t size = c10::multiply_integers(shape);
    const auto block = packed_.narrow(0, at_, size).view(shape).clone();
    at_ += size;
    return block;
  }

 private:
  at::Tensor packed_;
  int64_t at_ = 0;
};

// Integers in floating point: limbs of 12 bits, whose sums over 4096 ranks are exact in float32. ---

constexpr int64_t kLimbBits = 12;
constexpr int64_t kWordLimbs = 6;
constexpr int64_t kMaxFloatRanks = 4096;

at::Tensor limb_shifts(const at::Tensor& values, int64_t count) {
  auto shape = std::vector<int64_t>(values.dim() + 1, 1);
  shape[0] = count;
  return at::arange(count, values.options()).mul_(kLimbBits).view(shape);
}

/// Splits non-negative integers below 2^36 into (3, ...); any integers into (6, ...), if only one
/// rank has nonzero numbers.
at::Tensor to_limbs(const at::Tensor& values, at::ScalarType dtype, int64_t count = kCountLimbs) {
  const auto mask = (int64_t{1} << kLimbBits) - 1;
  return values.unsqueeze(0)
      .bitwise_right_shift(limb_shifts(values, count))
      .bitwise_and(mask)
      .to(dtype);
}

at::Tensor from_limbs(const at::Tensor& limbs) {
  const auto integers = limbs.to(at::kLong);
  return integers.bitwise_left_shift(limb_shifts(integers.select(0, 0), limbs.size(0))).sum(0);
}

/// Clamps sums that exceed the range of float32.
at::Tensor finite(const at::Tensor& values) {
  constexpr double kLargest = std::numeric_limits<float>::max();
  return values.scalar_type() == at::kFloat ? values.clamp(-kLargest, kLargest) : values;
}

/// Converts fixed point to floating point. float32 is rounded twice, which is negligible compared
/// to the rounding of its sum.
at::Tensor decode_sums(const at::Tensor& sums, const at::Tensor& exponents, at::ScalarType dtype) {
  if (dtype == at::kDouble) return detail::decode_to_double(sums, exponents, dtype);
  const auto scale =
      detail::power_of_two(detail::clamp_exponents(exponents) - kernels::kUnitBits).unsqueeze(-1);
  return finite(sums[0].to(at::kDouble).mul_(scale).to(dtype));
}

/// Converts back to fixed point, with exponents for which the sums stay below 2^60.
std::pair<at::Tensor, at::Tensor> encode_sums(const at::Tensor& values_,
                                              const at::Tensor& exponents, int64_t words) {
  const auto needed = detail::exponent_of(at::maximum(values_.amax(-1), values_.amin(-1).neg())) -
                      kernels::kUnitBits;
  const auto used = detail::clamp_exponents(detail::clamp_exponents(exponents).maximum(needed));
  const auto scale = detail::power_of_two(used.neg().add(kernels::kUnitBits)).unsqueeze(-1);
  const auto scaled = values_.to(at::kDouble).mul(scale);
  if (words == 1) return {scaled.round().to(at::kLong).unsqueeze(0), used};
  const auto whole = scaled.round();
  const auto rest = scaled.sub(whole).mul_(4294967296.0).round_();
  return {at::stack({whole.to(at::kLong), rest.to(at::kLong)}), used};
}

/// float64 if tokens are.
at::ScalarType sent_as(const SyncedStatistics& own) {
  const auto wide = [](const at::Tensor& sums) { return sums.size(0) == 2; };
  return std::any_of(own.sums.begin(), own.sums.end(), wide) ? at::kDouble : at::kFloat;
}

}  // namespace

int64_t bytes_of_a_word(bool wide) {
  return kWordLimbs * static_cast<int64_t>(wide ? sizeof(double) : sizeof(float));
}

StatisticsMessage send_exact(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                             const SyncedStatistics& own, const at::Tensor& extra) {
  Packer packer;
  packer.add(make_header(hash, news));
  for (size_t c = 0; c < own.counts.size(); ++c) {
    packer.add(own.counts[c]);
    packer.add(own.sums[c]);
  }
  packer.add(own_row(group, extra));
  auto packed = packer.packed();
  auto sum = group.start_sum(packed, kWhat);
  return {std::move(packed), std::move(sum)};
}

Verdict receive_exact(const Group& group, const StatisticsMessage& message, SyncedStatistics& own,
                      at::Tensor& extra) {
  group.wait(message.sum);
  Unpacker unpacker(message.packed);
  const auto verdict = read_header(unpacker.next({kHeaderSize}), group.size());
  for (size_t c = 0; c < own.counts.size(); ++c) {
    own.counts[c] = unpacker.next(own.counts[c].sizes());
    own.sums[c] = unpacker.next(own.sums[c].sizes());
  }
  extra = unpacker.next({group.size(), extra.size(0)});
  return verdict;
}

Verdict reduce_exact(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                     SyncedStatistics& own, at::Tensor& extra) {
  return receive_exact(group, send_exact(group, hash, news, own, extra), own, extra);
}

StatisticsMessage send_float(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                             const SyncedStatistics& own, const at::Tensor& extra) {
  TORCH_CHECK_VALUE(group.size() <= kMaxFloatRanks, group.subject(),
                    ": expected reduction=\"float\" to have at most ", kMaxFloatRanks,
                    " ranks, but got ", group.size(), "; use \"exact\"");
  const auto dtype = sent_as(own);
  Packer packer;
  packer.add(to_limbs(make_header(hash, news), dtype));
  for (size_t c = 0; c < own.counts.size(); ++c) {
    packer.add(to_limbs(own.counts[c], dtype));
    packer.add(decode_sums(own.sums[c], own.exponents[c], dtype));
  }
  packer.add(to_limbs(own_row(group, extra), dtype, kWordLimbs));
  auto packed = packer.packed();
  auto sum = group.start_sum(packed, kWhat);
  return {std::move(packed), std::move(sum)};
}

Verdict receive_float(const Group& group, const StatisticsMessage& message,
                      at::TensorList exponents, SyncedStatistics& own, at::Tensor& extra) {
  group.wait(message.sum);
  Unpacker unpacker(message.packed);
  const auto verdict =
      read_header(from_limbs(unpacker.next({kCountLimbs, kHeaderSize})), group.size());
  for (size_t c = 0; c < own.counts.size(); ++c) {
    const auto counts = own.counts[c].sizes(), sums = own.sums[c].sizes();
    own.counts[c] = from_limbs(unpacker.next({kCountLimbs, counts[0], counts[1]}));
    const auto values = finite(unpacker.next(sums.slice(1)));
    std::tie(own.sums[c], own.exponents[c]) = encode_sums(values, exponents[c], sums[0]);
  }
  extra = from_limbs(unpacker.next({kWordLimbs, group.size(), extra.size(0)}));
  return verdict;
}

Verdict reduce_float(const Group& group, const at::Tensor& hash, const at::Tensor& news,
                     at::TensorList exponents, SyncedStatistics& own, at::Tensor& extra) {
  const auto message = send_float(group, hash, news, own, extra);
  return receive_float(group, message, exponents, own, extra);
}

}  // namespace torchvq::distributed
