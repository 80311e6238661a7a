#include "ops/extend_paths.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/library.h>

#include "detail/residual_arguments.h"

namespace torchvq {
namespace {

/// The paths of one token, and its candidates.
template <typename T>
struct PathRows {
  const T* residual;          ///< (w, D)
  const T* decoded;           ///< (w, D)
  const double* score;        ///< (w)
  const int64_t* indices;     ///< (w, levels)
  const T* codes;             ///< (w, C, D)
  const int64_t* candidates;  ///< (w, C), or null
};

template <typename T>
struct NextPathRows {
  T* residual;
  T* decoded;
  double* score;
  int64_t* indices;
};

struct PathSizes {
  int64_t width, candidates, dim, levels, kept;
  std::optional<double> weight;
};

template <typename T>
double squared_residual(const T* residual, const T* code, int64_t dim) {
  double sum = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const double difference = static_cast<double>(residual[d]) - static_cast<double>(code[d]);
    sum += difference * difference;
  }
  return sum;
}

template <typename T>
void score_extensions(const PathRows<T>& paths, const PathSizes& sizes, double* scores) {
  for (int64_t path = 0; path < sizes.width; ++path) {
    const T* const codes = paths.codes + path * sizes.candidates * sizes.dim;
    for (int64_t c = 0; c < sizes.candidates; ++c) {
      double score =
          squared_residual(paths.residual + path * sizes.dim, codes + c * sizes.dim, sizes.dim);
      if (sizes.weight) score = paths.score[path] + score * *sizes.weight;
      *scores++ = std::isfinite(score) ? score : std::numeric_limits<double>::infinity();
    }
  }
}

/// Orders the first `kept` of `places` as the best extensions, in lexicographic order.
void keep_best(const double* scores, std::vector<int64_t>& places, int64_t kept) {
  std::iota(places.begin(), places.end(), 0);
  const auto last = places.begin() + kept;
  if (last != places.end()) {
    std::nth_element(places.begin(), last, places.end(), [&](int64_t a, int64_t b) {
      return scores[a] < scores[b] || (scores[a] == scores[b] && a < b);
    });
  }
  std::sort(places.begin(), last);
}

template <typename T>
void write_path(const PathRows<T>& paths, const PathSizes& sizes, int64_t place, double score,
                int64_t to, const NextPathRows<T>& next) {
  const int64_t parent = place / sizes.candidates, dim = sizes.dim, levels = sizes.levels;
  const T* const code = paths.codes + place * dim;
  for (int64_t d = 0; d < dim; ++d) {
    next.residual[to * dim + d] = paths.residual[parent * dim + d] - code[d];
    next.decoded[to * dim + d] = paths.decoded[parent * dim + d] + code[d];
  }
  next.score[to] = score;
  int64_t* const indices = next.indices + to * (levels + 1);
  std::copy_n(paths.indices + parent * levels, levels, indices);
  indices[levels] = paths.candidates ? paths.candidates[place] : place % sizes.candidates;
}

template <typename T>
detail::PathTensors extend(const at::Tensor& residual, const at::Tensor& decoded,
                           const at::Tensor& score, const at::Tensor& indices,
                           const at::Tensor& codes, int64_t beam,
                           const std::optional<at::Tensor>& candidates,
                           std::optional<double> weight) {
  auto next = detail::new_paths(residual, score, indices, codes, beam);
  const PathSizes sizes{
      codes.size(2), codes.size(3), codes.size(4), indices.size(3), std::get<2>(next).size(2),
      weight};
  const int64_t all = sizes.width * sizes.candidates, dim = sizes.dim;
  const PathRows<T> from{
      residual.const_data_ptr<T>(),   decoded.const_data_ptr<T>(),
      score.const_data_ptr<double>(), indices.const_data_ptr<int64_t>(),
      codes.const_data_ptr<T>(),      candidates ? candidates->const_data_ptr<int64_t>() : nullptr};
  const NextPathRows<T> to{
      std::get<0>(next).mutable_data_ptr<T>(), std::get<1>(next).mutable_data_ptr<T>(),
      std::get<2>(next).mutable_data_ptr<double>(), std::get<3>(next).mutable_data_ptr<int64_t>()};
  const int64_t grain = 1 + 16384 / (all * (dim + 8));
  at::parallel_for(0, codes.size(0) * codes.size(1), grain, [&](int64_t begin, int64_t end) {
    std::vector<double> scores(static_cast<size_t>(all));
    std::vector<int64_t> places(static_cast<size_t>(all));
    for (int64_t row = begin; row < end; ++row) {
      const int64_t paths = row * sizes.width, kept = row * sizes.kept;
      const PathRows<T> token{
          from.residual + paths * dim,  from.decoded + paths * dim,
          from.score + paths,           from.indices + paths * sizes.levels,
          from.codes + row * all * dim, from.candidates ? from.candidates + row * all : nullptr};
      const NextPathRows<T> extended{to.residual + kept * dim, to.decoded + kept * dim,
                                     to.score + kept, to.indices + kept * (sizes.levels + 1)};
      score_extensions(token, sizes, scores.data());
      keep_best(scores.data(), places, sizes.kept);
      for (int64_t i = 0; i < sizes.kept; ++i) {
        const auto place = places[static_cast<size_t>(i)];
        write_path(token, sizes, place, scores[static_cast<size_t>(place)], i, extended);
      }
    }
  });
  return next;
}

detail::PathTensors extend_paths(const at::Tensor& residual, const at::Tensor& decoded,
                                 const at::Tensor& score, const at::Tensor& indices,
                                 const at::Tensor& codes, int64_t beam,
                                 const std::optional<at::Tensor>& candidates,
                                 std::optional<double> weight) {
  detail::check_extend_paths(residual, decoded, score, indices, codes, beam, candidates, weight);
  const auto own = candidates ? std::optional(candidates->contiguous()) : std::nullopt;
  const auto run = residual.scalar_type() == at::kDouble ? extend<double> : extend<float>;
  return run(residual.contiguous(), decoded.contiguous(), score.contiguous(), indices.contiguous(),
             detail::contiguous_as(codes, residual.scalar_type()), beam, own, weight);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("extend_paths", extend_paths); }

}  // namespace torchvq
