// The best of many scored things, decided on the device: a product has screened them, and those
// that its bound leaves in question get the scores that a contract defines. The k nearest codes of
// rows, and the extensions of a beam's paths. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// Wrong on purpose, for tests.
enum class BestScoresFault { kNone = 0, kTrustScreening = 1 };

/// `best` of each row's scores, smallest first, of equal ones the first.
struct BestScoresTask {
  double* scores = nullptr;        ///< (rows, count), screened; then the contract's, or infinity
  const double* limits = nullptr;  ///< (rows): what is above is not among the best; NaN: all may be
  int64_t rows = 0, count = 0, best = 0;
  int64_t* chosen = nullptr;  ///< (rows, best)
  BestScoresFault fault = BestScoresFault::kNone;
};

/// Codes (size, dim) as they are scored by nearest_code: (c / 2 - x) c, or -x c, in index order.
template <typename T>
struct CodeScores {
  const T* x = nullptr;      ///< (rows, dim)
  const T* codes = nullptr;  ///< (size, dim); size is the count of scores
  const bool* excluded = nullptr;
  const double* bias = nullptr;  ///< (size), or null
  int64_t dim = 0;
  bool cosine = false;
};

Error nearest_codes(const BestScoresTask& task, const CodeScores<float>& codes, const Queue& queue);
Error nearest_codes(const BestScoresTask& task, const CodeScores<double>& codes,
                    const Queue& queue);

/// The paths of a beam before and behind a level; extensions count by path and code.
template <typename T>
struct BeamPaths {
  const T* left = nullptr;           ///< (rows, width, dim): what remains of a row
  const double* score = nullptr;     ///< (rows, width)
  const int64_t* indices = nullptr;  ///< (rows, width, level)
  const T* codes = nullptr;          ///< (size, dim)
  const bool* excluded = nullptr;    ///< (size), codes that are not finite
  int64_t width = 0, size = 0, dim = 0, level = 0;
  double weight = 1;
  bool adds = false;                ///< whether scores of levels add up
  T* next_left = nullptr;           ///< (rows, best, dim)
  double* next_score = nullptr;     ///< (rows, best)
  int64_t* next_indices = nullptr;  ///< (rows, best, level + 1)
};

/// Paths stay in lexicographic order.
Error extend_paths(const BestScoresTask& task, const BeamPaths<float>& paths, const Queue& queue);
Error extend_paths(const BestScoresTask& task, const BeamPaths<double>& paths, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
