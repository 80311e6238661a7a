#include "distributed/offered_candidates.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "detail/row_keys.h"
#include "distributed/bytes.h"
#include "distributed/statistics_buffer.h"

namespace torchvq::distributed {
namespace {

constexpr int64_t kWordBytes = sizeof(int64_t);
// Messages of this size cost hardly more than empty ones.
constexpr int64_t kFewBytes = int64_t{8} * 1024;
constexpr int64_t kShareOfStatistics = 8;
// Smaller than every key, so that a rank without an offer counts as a rank without room.
constexpr int64_t kNothing = -1;

int64_t words_of(int64_t bytes) { return (bytes + kWordBytes - 1) / kWordBytes; }

int64_t row_bytes(const OfferShape& shape) {
  return shape.dim * static_cast<int64_t>(c10::elementSize(shape.rows));
}

}  // namespace

int64_t offered_count(const OfferShape& shape, int64_t ranks, bool exact) {
  const bool wide = shape.sum_words == 2;
  const int64_t number = wide ? sizeof(double) : sizeof(float);
  const int64_t code =
      exact ? kWordBytes * (1 + shape.sum_words * shape.dim) : number * (kCountLimbs + shape.dim);
  const int64_t room = std::max(shape.heads * shape.codes * code / kShareOfStatistics, kFewBytes);
  const int64_t word = exact ? kWordBytes : bytes_of_a_word(wide);
  return std::min(shape.codes,
                  room / (ranks * shape.heads * word * (1 + words_of(row_bytes(shape)))));
}

int64_t offered_words(const OfferShape& shape, int64_t count) {
  return shape.heads * count + words_of(shape.heads * count * row_bytes(shape));
}

at::Tensor pack_offer(const Candidates& own) {
  const auto bytes = as_bytes(own.rows);
  const auto size = words_of(bytes.numel()) * kWordBytes;
  const auto padding = at::zeros({size - bytes.numel()}, bytes.options());
  return at::cat({own.keys.reshape({-1}), at::cat({bytes, padding}).view(at::kLong)});
}

Offers unpack_offers(const at::Tensor& words, const OfferShape& shape, int64_t count) {
  const int64_t ranks = words.size(0), keys_size = shape.heads * count;
  const auto keys = words.narrow(1, 0, keys_size).reshape({ranks, shape.heads, count});
  const auto bytes = words.narrow(1, keys_size, words.size(1) - keys_size)
                         .contiguous()
                         .view(at::kByte)
                         .narrow(1, 0, keys_size * row_bytes(shape));
  const auto rows =
      bytes.contiguous().view(shape.rows).view({ranks, shape.heads, count, shape.dim});
  // The keys of a rank ascend, and the last is kNoKey if it had no more.
  const auto known = keys.select(2, count - 1).amin(0);
  const auto cut = keys.masked_fill(keys.gt(known.view({1, shape.heads, 1})), detail::kNoKey)
                       .masked_fill(keys.eq(kNothing), detail::kNoKey);
  return {{cut.transpose(0, 1).reshape({shape.heads, ranks * count}),
           rows.transpose(0, 1).reshape({shape.heads, ranks * count, shape.dim})},
          known.eq(detail::kNoKey)};
}

Candidates no_offer(const OfferShape& shape, int64_t count, at::Device device) {
  return {at::full({shape.heads, count}, kNothing, at::device(device).dtype(at::kLong)),
          at::zeros({shape.heads, count, shape.dim}, at::device(device).dtype(shape.rows))};
}

}  // namespace torchvq::distributed
