// Candidates for dead codes that are sent with the statistics of a step, so that the replacement of
// dead codes needs no further collective.
//
// For each codebook, a rank offers the tokens with the smallest keys, as many as the message has
// room for. This number depends on sizes and the number of ranks, so it is the same on all ranks.
// The dead codes are known only after the statistics; if there are more of them than offers, a
// further collective follows (synced_replace_dead_codes_).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "distributed/candidates.h"

namespace torchvq::distributed {

/// The sizes that determine how many candidates of one codebook are offered.
struct OfferShape {
  int64_t heads;
  int64_t codes;
  int64_t dim;
  at::ScalarType rows;  ///< dtype of the candidates: float32 or float64
  int64_t sum_words;    ///< of code_statistics(): 1, or 2 for float64 tokens
};

/// The number of candidates that each rank offers for one codebook: at most its number of codes,
/// and few enough that the offers of all ranks take at most an eighth of its statistics or 8
/// KiB, whichever is larger.
///
/// @param exact  words are sent as int64; otherwise as several floating-point numbers.
int64_t offered_count(const OfferShape& shape, int64_t ranks, bool exact);

/// The number of words of `count` candidates of one codebook.
int64_t offered_words(const OfferShape& shape, int64_t count);

/// Candidates as int64, keys first.
at::Tensor pack_offer(const Candidates& own);

/// The offers of all ranks for one codebook.
struct Offers {
  /// The offers of all ranks, concatenated, without keys beyond the last key of a rank that had no
  /// room for more: exactly the candidates that a single process would try first.
  Candidates candidates;
  /// (H,) bool: whether every rank had room for all of its candidates.
  at::Tensor complete;
};

/// The inverse of pack_offer(), from the words (W, n) of all ranks.
Offers unpack_offers(const at::Tensor& words, const OfferShape& shape, int64_t count);

/// An empty offer, for a codebook without dead codes in this step.
Candidates no_offer(const OfferShape& shape, int64_t count, at::Device device);

}  // namespace torchvq::distributed
