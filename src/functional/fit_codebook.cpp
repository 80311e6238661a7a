#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torchvq/functional/fit_codebook.h>
#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/decode_sums.h>
#include <torchvq/ops/nearest_code.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "functional/far_vectors.h"
#include "functional/interim_ops.h"
#include "functional/sample_rows.h"
#include "functional/unit_vectors.h"

namespace torchvq::functional {
namespace {

constexpr int64_t kMostMovesPerPass = 256;
constexpr int64_t kSampleIterations = 10;

// code_statistics() raises an exponent when a vector exceeds it by more than this many bits.
constexpr int64_t kExponentSlack = 8;
// Vectors per code that may use all of that slack.
constexpr int64_t kSlackTokens = int64_t{1} << 25;

int64_t sample_size(int64_t rows, int64_t size) {
  return std::min(rows, std::max(2 * size, std::min<int64_t>(64 * size, 65536)));
}

void check(const VectorBlocks& vectors, const FitCodebookOptions& options) {
  TORCH_CHECK_VALUE(options.codebook_size >= 1 && options.codebook_size <= vectors.rows,
                    "fit_codebook: expected codebook_size to be in [1, ", vectors.rows,
                    "], the number of vectors, but got ", options.codebook_size);
  TORCH_CHECK_VALUE(options.iterations >= 0,
                    "fit_codebook: expected iterations to be at least 0, but got ",
                    options.iterations);
  TORCH_CHECK_VALUE(options.metric == "euclidean" || options.metric == "cosine",
                    "fit_codebook: expected metric to be euclidean or cosine, but got ",
                    options.metric);
}

class Fitter {
 public:
  Fitter(const VectorBlocks& vectors, const FitCodebookOptions& options,
         const FitProgress& progress)
      : vectors_(vectors),
        options_(options),
        progress_(progress),
        cosine_(options.metric == "cosine") {}

  FitCodebookOutput run() {
    FitCodebookOutput output;
    output.codebook = first_codebook();
    while (output.iterations < options_.iterations && !output.converged) {
      auto next = improve(output.codebook, ++output.iterations);
      output.converged = at::equal(next, output.codebook);
      output.codebook = std::move(next);
    }
    const auto show = [&](int64_t rows) { report(options_.iterations + 1, rows); };
    output.evaluation = evaluate_codebook(vectors_, output.codebook, options_.metric, show);
    return output;
  }

 private:
  template <typename Work>
  void for_each(int64_t pass, Work&& work) {
    for (int64_t first = 0; first < vectors_.rows; first += vectors_.block_rows) {
      const auto count = std::min(vectors_.block_rows, vectors_.rows - first);
      const auto block = vectors_.read(first, count);
      work(first, cosine_ ? unit_vectors(block) : block);
      report(pass, first + count);
    }
  }

  void report(int64_t pass, int64_t rows) const {
    if (progress_) progress_(pass, rows);
  }

  at::Tensor first_codebook() {
    const SampledRows sampled(vectors_.rows, sample_size(vectors_.rows, options_.codebook_size),
                              rng(0));
    std::vector<at::Tensor> sample;
    double largest = 0;
    for_each(0, [&](int64_t first, const at::Tensor& block) {
      sample.push_back(block.index_select(0, sampled.within(first, block.size(0))));
      largest = std::max(largest, block.abs().max().item<double>());
    });
    choose_least_exponent(largest);
    return first_kmeans(at::cat(sample));
  }

  // One exponent bound for all passes, from the largest element of the data: no block then raises
  // an exponent, so that the sums are the same for any split into blocks.
  void choose_least_exponent(double largest) {
    const int64_t tokens_bits = std::bit_width(static_cast<uint64_t>(vectors_.rows / kSlackTokens));
    least_exponent_ = (largest == 0 ? 0 : std::ilogb(largest) + 1) -
                      std::max<int64_t>(0, kExponentSlack - tokens_bits);
  }

  // The step keeps the draws of the sample apart from those of k-means on it.
  at::Tensor rng(int64_t step) const { return at::tensor({options_.seed, step}, at::kLong); }

  at::Tensor first_kmeans(const at::Tensor& sample);

  // One pass of Lloyd's algorithm.
  at::Tensor improve(const at::Tensor& codebook, int64_t pass) {
    const auto size = codebook.size(0), dim = codebook.size(1);
    const auto exponents = ops::code_exponents(codebook.unsqueeze(0)).clamp_min(least_exponent_);
    const auto options = ops::NearestCodeOptions().metric(options_.metric).return_distances(true);
    auto counts = at::zeros({size}, at::kLong);
    auto sums = at::zeros({1, 1, size, dim}, at::kLong);
    FarVectors far(std::min(size, kMostMovesPerPass));
    for_each(pass, [&](int64_t first, const at::Tensor& block) {
      const auto nearest = ops::nearest_code(block, codebook, options);
      const auto [block_counts, block_sums, used] =
          ops::code_statistics(block.unsqueeze(0), nearest.indices.unsqueeze(0), exponents);
      counts += block_counts[0];
      sums += block_sums;
      far.add(block, nearest.distances, first);
    });
    const auto total = ops::decode_sums(sums, exponents, at::kDouble)[0];
    return move_codes(codebook, counts, total, far);
  }

  at::Tensor move_codes(const at::Tensor& codebook, const at::Tensor& counts,
                        const at::Tensor& total, const FarVectors& far) const {
    auto means = (total / counts.clamp_min(1).unsqueeze(1)).to(at::kFloat);
    if (cosine_) means = unit_vectors(means);
    const auto empty = counts.eq(0);
    auto next = at::where(empty.unsqueeze(1), codebook, means);
    const auto unused = empty.nonzero().flatten();
    const auto places = far.distinct();
    const auto moves = std::min(unused.size(0), static_cast<int64_t>(places.size()));
    for (int64_t i = 0; i < moves; ++i) {
      next.select(0, unused[i].item<int64_t>()).copy_(places[static_cast<size_t>(i)]);
    }
    return next;
  }

  const VectorBlocks& vectors_;
  const FitCodebookOptions& options_;
  const FitProgress& progress_;
  bool cosine_;
  int64_t least_exponent_ = 0;
};

at::Tensor Fitter::first_kmeans(const at::Tensor& sample) {
  return interim_kmeans(sample, options_.codebook_size, kSampleIterations, options_.seed,
                        options_.metric);
}

}  // namespace

FitCodebookOutput fit_codebook(const VectorBlocks& vectors, const FitCodebookOptions& options,
                               const FitProgress& progress) {
  check(vectors, options);
  return Fitter(vectors, options, progress).run();
}

}  // namespace torchvq::functional
