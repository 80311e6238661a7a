// Chooses the best of many scored items on the device: a product screens them, and those that its
// error bound leaves undecided get the exact scores of a contract. Used for the k nearest codes of
// rows and for the extensions of a beam's paths. Torch-free.
#pragma once

#include <cstdint>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// Deliberate faults, for tests.
enum class BestScoresFault { kNone = 0, kTrustScreening = 1 };

/// The `best` smallest scores of each row, in ascending order; ties by index.
struct BestScoresTask {
  double* scores = nullptr;        ///< (rows, count): screened; then exact, or infinity
  const double* limits = nullptr;  ///< (rows): scores above are not among the best; NaN: all may be
  int64_t rows = 0, count = 0, best = 0;
  int64_t* chosen = nullptr;  ///< (rows, best)
  BestScoresFault fault = BestScoresFault::kNone;
};

/// Codes (size, dim) scored as by nearest_code: (c / 2 - x) c, or -x c, in index order.
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

/// The paths of a beam before and after a level; extensions are numbered by path, then code.
template <typename T>
struct BeamPaths {
  const T* left = nullptr;           ///< (rows, width, dim): residual of a path
  const double* score = nullptr;     ///< (rows, width)
  const int64_t* indices = nullptr;  ///< (rows, width, level)
  const T* codes = nullptr;          ///< (size, dim)
  const bool* excluded = nullptr;    ///< (size), codes that are not finite
  int64_t width = 0, size = 0, dim = 0, level = 0;
  double weight = 1;
  bool adds = false;                ///< whether the scores of levels are summed
  T* next_left = nullptr;           ///< (rows, best, dim)
  double* next_score = nullptr;     ///< (rows, best)
  int64_t* next_indices = nullptr;  ///< (rows, best, level + 1)
};

/// Paths stay in lexicographic order.
Error extend_paths(const BestScoresTask& task, const BeamPaths<float>& paths, const Queue& queue);
Error extend_paths(const BestScoresTask& task, const BeamPaths<double>& paths, const Queue& queue);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
