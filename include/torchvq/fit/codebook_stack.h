// Codebooks that describe a vector together: residual levels, in one group of features or several.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torchvq::fit {

/// `groups[g][q]` is level q of group g: (K, D / groups), float32, on the CPU. Group g describes
/// the features [g D / groups, (g + 1) D / groups); each of its levels quantizes the residual of
/// the levels before.
///
/// Its functions throw c10::ValueError without a codebook, and c10::IndexError for a column that it
/// does not have.
struct TORCHVQ_API CodebookStack {
  std::vector<std::vector<at::Tensor>> groups;
  std::string metric = "euclidean";  ///< "cosine" only for one group of one level: unit vectors

  int64_t dim() const;
  int64_t group_dim() const;
  int64_t levels() const;
  /// Number of codes of a vector: groups times levels.
  int64_t columns() const;
  /// The codebook of a column; columns run through the levels of group 0, then of group 1, ...
  const at::Tensor& codebook(int64_t column) const;
  /// Number of paths through the levels of a group, at most `most`: a wider beam has nothing to
  /// keep.
  int64_t paths(int64_t most = int64_t{1} << 40) const;
};

/// Codes of vectors, by beam search in each group (ops/residual_beam_search.h).
///
/// @param x     (N, D), float32.
/// @param beam  paths kept between levels; 1 takes the nearest code of each level.
/// @return      (N, columns), int64.
///
/// Throws c10::ValueError for another dimension, no codebook, beam < 1, an unknown metric, or the
/// cosine metric with several codebooks.
TORCHVQ_API at::Tensor encode_stack(const at::Tensor& x, const CodebookStack& stack,
                                    int64_t beam = 1);

/// Sums of codes, added in the order of the levels.
///
/// @param codes  (N, columns), int64 in [-1, K); -1 adds nothing.
/// @return       (N, D), float32.
TORCHVQ_API at::Tensor decode_stack(const at::Tensor& codes, const CodebookStack& stack);

}  // namespace torchvq::fit
