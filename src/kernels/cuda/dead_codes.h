// Replacement of codes that fell out of use, as src/detail/dead_codes.cpp does it, without a sort:
// distinct tokens are found by a table of their keys, and the smallest keys by a histogram of their
// leading bits. Nothing is read on the host; a head without a dead code costs launches that end at
// once.
#pragma once

#include <cstdint>

#include "kernels/cuda/element_type.h"
#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// Rows that may become codes, and the memory to find the first of them by rising key.
struct CandidateTask {
  const void* x = nullptr;                 ///< (heads, rows, dim)
  ElementType type = ElementType::kFloat;  ///< of x
  const bool* mask = nullptr;              ///< (heads, rows), true for real tokens, or null: all
  const int64_t* keys = nullptr;           ///< (heads, rows) where x has keys already, or null
  bool unit = false;                       ///< rows become unit vectors; zero rows are left out
  const int64_t* rng = nullptr;            ///< (seed, step)
  uint64_t purpose = 0;
  int64_t heads = 0, rows = 0, dim = 0;
  int64_t most = 0;                 ///< candidates wanted per head
  const int64_t* wanted = nullptr;  ///< (heads,), at most `most`; null: `most`
  int64_t* found = nullptr;         ///< (heads,): candidates found, at most as wanted
  int64_t* chosen = nullptr;        ///< (heads, most): their rows by rising key
  // To work in.
  int64_t slots = 0;                ///< of a head's table, see candidate_slots()
  uint64_t* table_keys = nullptr;   ///< (heads, slots)
  uint64_t* table_rows = nullptr;   ///< (heads, slots)
  int64_t* bins = nullptr;          ///< (heads, 3 * kCandidateBins + 2)
  uint64_t* listed_keys = nullptr;  ///< (heads, rows)
  uint64_t* listed_rows = nullptr;  ///< (heads, rows)
};

constexpr int64_t kCandidateBins = 4096;
constexpr int64_t kCandidateBinWords = 3 * kCandidateBins + 2;

/// Slots of a table that holds the keys of `rows` rows and `codes` codes: a power of two, and at
/// most half of them taken.
constexpr int64_t candidate_slots(int64_t rows, int64_t codes) {
  int64_t slots = 64;
  while (slots < 2 * (rows + codes)) slots *= 2;
  return slots;
}

/// The first half on its own: keys (heads, most), rising, the largest int64 where there are fewer;
/// values (heads, most, dim), double if x is, else float, zero there.
Error dead_code_candidates(const CandidateTask& task, int64_t* keys, void* values,
                           const Queue& queue);

/// What decides which codes are dead, and what becomes of them.
struct DeadCodeTask {
  const int64_t* counts = nullptr;  ///< (heads, size)
  int64_t size = 0;
  double threshold = 0, threshold_fraction = 0, reset_cluster_size = 0;
  void* cooldown = nullptr;    ///< (heads, size)
  bool long_cooldown = false;  ///< int64; otherwise int32
  int64_t cooldown_steps = 0;
  // To work in.
  double* dead_sizes = nullptr;  ///< (heads, size): cluster size of a dead code; else infinity
  double* reset = nullptr;       ///< (heads,): cluster size of a replaced code
  int64_t* dead = nullptr;       ///< (heads,): dead codes; `wanted` of the candidates
  int64_t* last = nullptr;       ///< (heads,): the last dead code that is served
};

/// The state, float or double: cluster_size (heads, size), embed_avg and embed (heads, size, dim).
template <typename T>
struct DeadCodeState {
  T *cluster_size = nullptr, *embed_avg = nullptr, *embed = nullptr;
};

/// candidates.found is what the operator returns: codes replaced of each head.
Error replace_dead_codes(const DeadCodeTask& task, const CandidateTask& candidates,
                         const DeadCodeState<float>& state, const Queue& queue);
Error replace_dead_codes(const DeadCodeTask& task, const CandidateTask& candidates,
                         const DeadCodeState<double>& state, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
