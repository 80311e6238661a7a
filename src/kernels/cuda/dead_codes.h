// Replacement of dead codes as in src/detail/dead_codes.cpp, but without a sort: distinct tokens
// are found by a hash table of their keys, and the smallest keys by a histogram of their leading
// bits. Nothing is read on the host; for a head without a dead code, the launches end at once. Up to
// kMostTasks codebooks share the launches.
#pragma once

#include <cstdint>

#include "kernels/cuda/element_type.h"
#include "kernels/cuda/namespace.h"
#include "kernels/cuda/tasks.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// Rows that may become codes, and the memory to find those with the smallest keys.
struct CandidateTask {
  const void* x = nullptr;                 ///< (heads, rows, dim)
  ElementType type = ElementType::kFloat;  ///< of x
  bool unit = false;                       ///< rows become unit vectors; zero rows are left out
  const bool* mask = nullptr;              ///< (heads, rows), true for real tokens, or null: all
  const int64_t* keys = nullptr;           ///< (heads, rows) if x has keys already, or null
  const int64_t* rng = nullptr;            ///< (seed, step)
  uint64_t purpose = 0;
  int64_t heads = 0, rows = 0, dim = 0;
  int64_t most = 0;           ///< limit of candidates per head
  int64_t* wanted = nullptr;  ///< (heads,): candidates wanted, at most `most`; null: `most`
  int64_t* found = nullptr;   ///< (heads,): candidates found, at most those wanted
  int64_t* chosen = nullptr;  ///< (heads, most): their rows, by ascending key
  // Scratch.
  int64_t slots = 0;                ///< of a head's table, see candidate_slots()
  uint64_t* table_keys = nullptr;   ///< (heads, slots)
  uint64_t* table_rows = nullptr;   ///< (heads, slots)
  int64_t* bins = nullptr;          ///< (heads, kCandidateBinWords)
  uint64_t* listed_keys = nullptr;  ///< (heads, rows)
  uint64_t* listed_rows = nullptr;  ///< (heads, rows)
};

constexpr int64_t kCandidateBins = 4096;
constexpr int64_t kCandidateBinWords = 3 * kCandidateBins + 2;

/// Slots of a table for the keys of `rows` rows and `codes` codes: a power
/// of two, at most half full.
constexpr int64_t candidate_slots(int64_t rows, int64_t codes) {
  int64_t slots = 64;
  while (slots < 2 * (rows + codes)) slots *= 2;
  return slots;
}

/// The first half alone: keys (heads, most), ascending, the largest int64 where there
/// are fewer; values (heads, most, dim), double if x is double and otherwise float,
/// zero for missing candidates.
Error dead_code_candidates(const CandidateTask& task, int64_t* keys, void* values,
                           const Queue& queue);

/// What a head of a codebook keeps between launches.
struct DeadCodeHead {
  double reset;  ///< cluster size of a replaced code
  int64_t dead;  ///< number of dead codes
  int64_t last;  ///< the last of them that is replaced, if not all are
};

/// A codebook with its criteria for dead codes, and the candidates that replace them. State in
/// float or double.
template <typename T>
struct DeadCodeTask {
  /// `most` is the number of codes; `wanted` is scratch, the number of dead codes or the most that are
  /// replaced; `found` is the result of the operator, the number of replaced codes.
  CandidateTask candidates;
  T *cluster_size = nullptr, *embed_avg = nullptr, *embed = nullptr;  ///< the last two with dim
  const int64_t* counts = nullptr;                                    ///< (heads, most)
  double threshold = 0, threshold_fraction = 0, reset_cluster_size = 0;
  double most_per_token = 0;  ///< infinity: no limit
  bool replace_used = false;  ///< codes with tokens can be dead
  // Scratch.
  double* order = nullptr;          ///< (heads, most): see kernels/dead_code_order.h
  DeadCodeHead* of_head = nullptr;  ///< (heads,)
};

/// Either all codebooks or none have candidates with keys; `type` is the same for all.
Error replace_dead_codes(const Tasks<DeadCodeTask<float>>& tasks, const Queue& queue);
Error replace_dead_codes(const Tasks<DeadCodeTask<double>>& tasks, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
