#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torchvq/fit/fit_codebook.h>
#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/decode_sums.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/unit_vectors.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

#include "detail/metric.h"
#include "distributed/group.h"
#include "fit/far_vectors.h"
#include "fit/sample_rows.h"
#include "functional/joint_statistics.h"
#include "functional/read_block.h"
#include "ops/kmeans_steps.h"

namespace torchvq::fit {
namespace {

constexpr int64_t kMostMovesPerPass = 256;
constexpr int64_t kSampleIterations = 10;
// Longer steps, which reach a low error sooner, end up to 1.5 % higher in stacks (docs/design/statistics.md).
constexpr double kSampleStride = 1;

// Vectors of the sample: 128 MiB, but always some per code, and not more than k-means gains by.
constexpr int64_t kSampledValues = int64_t{1} << 25;
constexpr int64_t kSampledPerCode = 64;
constexpr int64_t kMostSampled = 65536;

// code_statistics() raises an exponent when a vector exceeds it by more than this many bits.
constexpr int64_t kExponentSlack = 8;
// Number of vectors per code that may use all of that slack.
constexpr int64_t kSlackTokens = int64_t{1} << 25;

using BlockWork = std::function<void(int64_t first, const at::Tensor& block)>;
using ForEachBlock = std::function<void(const BlockWork& work)>;

int64_t sample_size(int64_t rows, int64_t size, int64_t dim) {
  const auto enough = std::max(kSampledPerCode * size, kSampledValues / dim);
  return std::min(rows, std::max(2 * size, std::min(enough, kMostSampled)));
}

void check_codebook_fit(const functional::VectorBlocks& vectors,
                        const FitCodebookOptions& options) {
  TORCH_CHECK_VALUE(options.codebook_size >= 1 && options.codebook_size <= vectors.all_rows(),
                    "fit_codebook: expected codebook_size to be in [1, ", vectors.all_rows(),
                    "], the number of vectors, but got ", options.codebook_size);
  TORCH_CHECK_VALUE(options.iterations >= 0,
                    "fit_codebook: expected iterations to be at least 0, but got ",
                    options.iterations);
  detail::parse_metric("fit_codebook", options.metric);
}

// Passes of Lloyd's algorithm over vectors that come in blocks.
class Lloyd {
 public:
  /// @param largest  the largest magnitude in the data. It fixes the scale of the sums for all
  ///                 blocks, so that no block raises an exponent and the sums are the same for
  ///                 any split.
  Lloyd(std::string metric, int64_t rows, double largest) : metric_(std::move(metric)) {
    const int64_t token_bits = std::bit_width(static_cast<uint64_t>(rows / kSlackTokens));
    least_exponent_ =
        functional::exponent_for(largest) - std::max<int64_t>(0, kExponentSlack - token_bits);
  }

  /// The codebook after one pass.
  ///
  /// @param group  the ranks that share the vectors; those of this rank begin at the row that
  ///               `for_each` passes.
  at::Tensor iterate(const at::Tensor& codebook, const ForEachBlock& for_each,
                     const distributed::Group& group) const {
    const auto size = codebook.size(0), dim = codebook.size(1);
    const auto exponents = ops::code_exponents(codebook.unsqueeze(0)).clamp_min(least_exponent_);
    const auto options = ops::NearestCodeOptions().metric(metric_).return_distances(true);
    auto counts = at::zeros({size}, at::kLong);
    auto sums = at::zeros({1, 1, size, dim}, at::kLong);
    FarVectors far(std::min(size, kMostMovesPerPass));
    for_each([&](int64_t first, const at::Tensor& block) {
      const auto nearest = ops::nearest_code(block, codebook, options);
      const auto [block_counts, block_sums, used] =
          ops::code_statistics(block.unsqueeze(0), nearest.indices.unsqueeze(0), exponents);
      // The exponents are those of the first pass: a file may be rewritten while it is read.
      TORCH_CHECK_VALUE(at::equal(used, exponents),
                        "fit_codebook: expected vectors to stay as they were in the first pass, "
                        "but some from row ",
                        first, " on are larger");
      counts += block_counts[0];
      sums += block_sums;
      // Zero has no direction: it is as far from every unit vector, and no place for a code.
      auto distances = nearest.distances;
      if (is_cosine()) distances = distances * block.ne(0).any(1);
      far.add(block, distances, first);
    });
    if (!group.alone()) {
      const auto packed = at::cat({counts, sums.flatten()});
      group.sum_(packed, "counts and sums of the codes");
      counts = packed.narrow(0, 0, size);
      sums = packed.narrow(0, size, size * dim).view({1, 1, size, dim});
    }
    if (counts.eq(0).any().item<bool>()) far.gather(group, dim);
    return move_codes(codebook, counts, ops::decode_sums(sums, exponents, at::kDouble)[0], far);
  }

 private:
  bool is_cosine() const { return metric_ == "cosine"; }

  at::Tensor move_codes(const at::Tensor& codebook, const at::Tensor& counts,
                        const at::Tensor& sums, const FarVectors& far) const {
    auto means = (sums / counts.clamp_min(1).unsqueeze(1)).to(at::kFloat);
    if (is_cosine()) means = ops::unit_vectors(means);
    const auto empty = counts.eq(0);
    const auto kept = is_cosine() ? means.eq(0).all(1) : empty;
    auto next = at::where(kept.unsqueeze(1), codebook, means);
    const auto unused = empty.nonzero().flatten();
    const auto places = far.distinct();
    const auto moves = std::min(unused.size(0), static_cast<int64_t>(places.size()));
    for (int64_t i = 0; i < moves; ++i) {
      next.select(0, unused[i].item<int64_t>()).copy_(places[static_cast<size_t>(i)]);
    }
    return next;
  }

  std::string metric_;
  int64_t least_exponent_ = 0;
};

// Fails for a block whose `largest` magnitude is not finite. Of vectors near the end of float32's
// range, a level of a stack may leave more than float32 holds.
void check_fittable(const at::Tensor& block, int64_t first, double largest) {
  if (std::isfinite(largest)) return;
  const auto row = at::isfinite(block).all(1).logical_not().nonzero()[0].item<int64_t>();
  TORCH_CHECK_VALUE(false,
                    "fit_codebook: expected vectors, and what the levels before leave of them, to "
                    "fit in float32, but row ",
                    first + row, " holds NaN or infinity");
}

class Fitter {
 public:
  Fitter(const functional::VectorBlocks& vectors, const FitCodebookOptions& options,
         const FitProgress& progress)
      : vectors_(vectors),
        options_(options),
        progress_(progress),
        group_(vectors.shard.group_name, {"fit_codebook", {}}) {}

  FitCodebookOutput run() {
    const auto [sample, largest] = read_sample();
    const Lloyd lloyd(options_.metric, vectors_.all_rows(), largest);
    FitCodebookOutput output;
    output.codebook = first_codebook(sample);
    while (output.iterations < options_.iterations && !output.converged) {
      const auto pass = ++output.iterations;
      auto next = lloyd.iterate(
          output.codebook, [&](const BlockWork& work) { for_each(pass, work); }, group_);
      output.converged = at::equal(next, output.codebook);
      output.codebook = std::move(next);
    }
    const auto show = [&](int64_t rows) { report(options_.iterations + 1, rows); };
    output.evaluation = evaluate_codebook(vectors_, output.codebook, options_.metric, show);
    return output;
  }

 private:
  struct Sample {
    at::Tensor vectors;
    double largest;
  };

  Sample read_sample() const {
    const auto rows = vectors_.all_rows();
    const auto size = sample_size(rows, options_.codebook_size, vectors_.dim);
    const SampledRows sampled(rows, size, rng(0));
    // Allocated at once: small parts kept between large blocks would fragment the heap until it
    // is as large as the file.
    const auto sample = at::zeros({size, vectors_.dim}, at::kFloat);
    double largest = 0;
    for_each(0, [&](int64_t first, const at::Tensor& block) {
      sampled.copy_to(sample, first, block);
      const auto of_block = block.abs().max().item<double>();
      check_fittable(block, first, of_block);
      largest = std::max(largest, of_block);
    });
    return share(sample, largest);
  }

  // Each row of the sample comes from one rank, and is zero on the others.
  Sample share(const at::Tensor& sample, double largest) const {
    if (group_.alone()) return {sample, largest};
    group_.sum_(sample.view(at::kInt), "the sample");
    const auto most = at::scalar_tensor(largest, at::kDouble).view({1});
    group_.max_(most, "the largest magnitude");
    return {sample, most.item<double>()};
  }

  // One rank computes it; the others would do the same work.
  at::Tensor first_codebook(const at::Tensor& sample) const {
    auto codebook = at::zeros({options_.codebook_size, vectors_.dim}, at::kFloat);
    if (group_.rank() == 0) {
      const bool unit = options_.metric == "cosine";
      const auto points = detail::usable_points(sample, {}, rng(1), unit);
      if (points.rows.size(0) > 0) {
        codebook = detail::cluster(points, options_.codebook_size, rng(1), kSampleIterations, unit,
                                   kSampleStride);
      }
    }
    group_.broadcast_(codebook, "the first codebook");
    return codebook;
  }

  void for_each(int64_t pass, const BlockWork& work) const {
    for (int64_t first = 0; first < vectors_.rows; first += vectors_.block_rows) {
      const auto count = std::min(vectors_.block_rows, vectors_.rows - first);
      const auto block = functional::read_block(vectors_, first);
      work(vectors_.shard.first_row + first,
           options_.metric == "cosine" ? ops::unit_vectors(block) : block);
      report(pass, first + count);
    }
  }

  void report(int64_t pass, int64_t rows) const {
    if (progress_) progress_(pass, rows);
  }

  // `step` keeps the draws of the sample apart from those of the seeds.
  at::Tensor rng(int64_t step) const { return at::tensor({options_.seed, step}, at::kLong); }

  const functional::VectorBlocks& vectors_;
  const FitCodebookOptions& options_;
  const FitProgress& progress_;
  const distributed::Group group_;
};

}  // namespace

FitCodebookOutput fit_codebook(const functional::VectorBlocks& vectors,
                               const FitCodebookOptions& options, const FitProgress& progress) {
  functional::check_blocks("fit_codebook", vectors);
  check_codebook_fit(vectors, options);
  return Fitter(vectors, options, progress).run();
}

}  // namespace torchvq::fit
