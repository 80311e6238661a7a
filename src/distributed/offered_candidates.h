// Candidates for dead codes that travel with the statistics of a step, so that the replacement of
// dead codes needs no collective of its own.
//
// A rank offers, of each codebook, the tokens with the smallest keys, as many as the message has
// room for: sizes and the number of ranks decide, so all ranks decide alike. Which codes die is
// known only after the statistics have come; where more died than the offers can serve, a
// collective of its own follows (synced_replace_dead_codes_).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "distributed/candidates.h"

namespace torchvq::distributed {

/// What decides how many candidates of one codebook are offered.
struct OfferShape {
  int64_t heads;
  int64_t codes;
  int64_t dim;
  at::ScalarType rows;  ///< dtype of the candidates: float32 or float64
  int64_t sum_words;    ///< of code_statistics(): 1, or 2 for float64 tokens
};

/// Candidates that each of the ranks offers of one codebook: at most as many as it has codes, and
/// so that the offers of all ranks add an eighth to its statistics, or 8 KiB where that is more.
///
/// @param exact  words travel as int64; otherwise as several numbers in floating point.
int64_t offered_count(const OfferShape& shape, int64_t ranks, bool exact);

/// The words that `count` candidates of one codebook take.
int64_t offered_words(const OfferShape& shape, int64_t count);

/// Candidates as int64, keys first.
at::Tensor pack_offer(const Candidates& own);

/// What all ranks have offered of one codebook.
struct Offers {
  /// Ranks side by side, without the keys beyond the first that some rank had no room for: what is
  /// left is what one process would try first.
  Candidates candidates;
  /// (H,) bool: every rank had room for all of its candidates.
  at::Tensor complete;
};

/// The way back, from the words (W, n) of all ranks.
Offers unpack_offers(const at::Tensor& words, const OfferShape& shape, int64_t count);

/// An offer of nothing, of a codebook in which no code can die in this step: enough for no dead
/// code at all.
Candidates no_offer(const OfferShape& shape, int64_t count, at::Device device);

}  // namespace torchvq::distributed
