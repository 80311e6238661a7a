#include <c10/util/Exception.h>
#include <torchvq/fit/fit_stack.h>
#include <torchvq/functional/refine_codebooks.h>

#include <algorithm>
#include <cmath>

#include "fit/residual_blocks.h"
#include "functional/read_block.h"

namespace torchvq::fit {
namespace {

void check_stack_fit(const functional::VectorBlocks& vectors, const FitStackOptions& options) {
  const auto at_least_one = [](const char* name, int64_t value) {
    TORCH_CHECK_VALUE(value >= 1, "fit_stack: expected ", name, " to be at least 1, but got ",
                      value);
  };
  at_least_one("levels", options.levels);
  at_least_one("groups", options.groups);
  at_least_one("beam", options.beam);
  TORCH_CHECK_VALUE(vectors.dim % options.groups == 0,
                    "fit_stack: expected groups to divide the dimension ", vectors.dim,
                    ", but got ", options.groups);
  TORCH_CHECK_VALUE(options.refine >= 0, "fit_stack: expected refine to be at least 0, but got ",
                    options.refine);
  TORCH_CHECK_VALUE(std::isfinite(options.refine_noise) && options.refine_noise >= 0,
                    "fit_stack: expected refine_noise to be at least 0 and finite, but got ",
                    options.refine_noise);
  TORCH_CHECK_VALUE(options.level.metric == "euclidean" || options.refine == 0,
                    "fit_stack: expected metric to be euclidean for refine above 0, but got ",
                    options.level.metric);
  TORCH_CHECK_VALUE(options.level.metric == "euclidean" || options.levels * options.groups == 1,
                    "fit_stack: expected metric to be euclidean for several codebooks, but got ",
                    options.level.metric);
}

// Each codebook draws its own sample, so that one outlier does not affect all of them.
int64_t seed_of(int64_t seed, int64_t column) {
  constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;
  return static_cast<int64_t>(static_cast<uint64_t>(seed) +
                              kGoldenRatio * static_cast<uint64_t>(column));
}

class StackFitter {
 public:
  StackFitter(const functional::VectorBlocks& vectors, const FitStackOptions& options,
              const FitStackProgress& progress)
      : vectors_(vectors), options_(options), progress_(progress) {
    output_.stack.metric = options.level.metric;
  }

  FitStackOutput run() {
    for (int64_t g = 0; g < options_.groups; ++g) fit_group(g);
    if (options_.refine > 0) refine_groups();
    const auto columns = options_.groups * (options_.levels + (options_.refine > 0 ? 1 : 0));
    output_.evaluation = evaluate_stack(vectors_, output_.stack, options_.beam,
                                        [&](int64_t rows) { report(columns, 0, rows); });
    return std::move(output_);
  }

 private:
  void fit_group(int64_t group) {
    const auto dim = vectors_.dim / options_.groups;
    ResidualBlocks residual(vectors_, group * dim, dim, options_.memory);
    auto& levels = output_.stack.groups.emplace_back();
    for (int64_t q = 0; q < options_.levels; ++q) {
      const auto column = group * options_.levels + q;
      auto level = options_.level;
      level.seed = seed_of(level.seed, column);
      const auto fit = fit_codebook(residual.blocks(), level, [&](int64_t pass, int64_t rows) {
        report(column, pass, rows);
      });
      output_.iterations += fit.iterations;
      output_.converged = output_.converged && fit.converged;
      output_.counts.push_back(fit.evaluation.counts);
      levels.push_back(fit.codebook);
      if (q + 1 < options_.levels) residual.subtract(fit.codebook);
    }
  }

  void refine_groups() {
    const auto options = functional::RefineCodebooksOptions()
                             .iterations(options_.refine)
                             .beam(std::max(options_.beam, kRefineBeam))
                             .noise(options_.refine_noise)
                             .seed(options_.level.seed)
                             .label("fit_stack");
    double before = 0, after = 0;
    for (int64_t g = 0; g < options_.groups; ++g) {
      const auto found = refine_group(g, options);
      before += found.error_before;
      after += found.error_after;
      output_.refits = std::max(output_.refits, found.iterations);
    }
    const auto elements = static_cast<double>(vectors_.all_rows() * vectors_.dim);
    output_.mse_before_refits = before / elements;
    output_.mse_after_refits = after / elements;
  }

  functional::RefineCodebooksOutput refine_group(
      int64_t group, const functional::RefineCodebooksOptions& options) {
    const auto dim = vectors_.dim / options_.groups;
    ResidualBlocks part(vectors_, group * dim, dim, options_.memory);
    auto& levels = output_.stack.groups[static_cast<size_t>(group)];
    const auto column = options_.groups * options_.levels + group;
    auto found = refine_codebooks(part.blocks(), levels, options,
                                  [&](int64_t pass, int64_t rows) { report(column, pass, rows); });
    levels = found.codebooks;
    const auto first = output_.counts.begin() + group * options_.levels;
    std::copy(found.counts.begin(), found.counts.end(), first);
    return found;
  }

  void report(int64_t column, int64_t pass, int64_t rows) const {
    if (progress_) progress_(column, pass, rows);
  }

  const functional::VectorBlocks& vectors_;
  const FitStackOptions& options_;
  const FitStackProgress& progress_;
  FitStackOutput output_;
};

}  // namespace

FitStackOutput fit_stack(const functional::VectorBlocks& vectors, const FitStackOptions& options,
                         const FitStackProgress& progress) {
  functional::check_blocks("fit_stack", vectors);
  check_stack_fit(vectors, options);
  return StackFitter(vectors, options, progress).run();
}

}  // namespace torchvq::fit
