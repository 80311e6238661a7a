// Prepares the levels of a beam search once per call, and passes blocks of tokens to the kernel.
#include "ops/residual_beam_search.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/cpu/nearest_code_bound.h"
#include "kernels/cpu/nearest_code_decide.h"
#include "kernels/cpu/residual_beam.h"

namespace torchvq {
namespace {

using detail::BeamProblem;

constexpr int64_t kBlockRows = 64;
// Products of codebooks may take 512 MiB. The rounding of so many levels fits between the largest sum of products and
// the largest integer of 16 bits.
constexpr int64_t kMostProducts = 1 << 28;
constexpr size_t kMostLevels = 1024;
constexpr double kLargestProduct = 32000;
constexpr int64_t kBlockNumbers = int64_t{1} << 17;  // of residuals or products of a block

/// Number of paths with which each level starts.
std::vector<int64_t> widths(const BeamProblem& problem) {
  std::vector<int64_t> result;
  int64_t width = 1;
  for (const auto& codebook : problem.codebooks) {
    result.push_back(width);
    width = std::min(problem.beam, width * codebook.size(1));
  }
  return result;
}

/// Whether products between codebooks cost less than products of each path with each code.
bool wants_products(const BeamProblem& problem) {
  // Costs of a product that is stored, and of one that is gathered and added, in multiply-adds.
  constexpr double kStore = 40, kGather = 4;
  const auto width = widths(problem);
  double products = 0, paths = 0, earlier = 0;
  for (size_t n = 0; n < width.size(); ++n) {
    const auto size = static_cast<double>(problem.codebooks[n].size(1));
    const auto dim = static_cast<double>(problem.dim), rows = static_cast<double>(problem.tokens);
    const auto count = static_cast<double>(width[n]);
    products += rows * size * dim + earlier * size * (dim + kStore) +
                rows * count * size * static_cast<double>(n) * kGather;
    paths += rows * count * size * dim;
    earlier += size;
  }
  return products < paths;
}

/// Per code of a level.
struct Facts {
  explicit Facts(int64_t size) : excluded(size), half(size), norms(size) {}

  kernels::AlignedBuffer<bool> excluded;
  kernels::AlignedBuffer<float> half;  ///< half the squared norm, infinite where excluded
  kernels::AlignedBuffer<double> norms;
};

/// The levels of one head in the form that the kernel needs; refers to the codebooks of the problem.
struct Prepared {
  Prepared(const BeamProblem& problem, int64_t head, bool products) {
    task.dim = problem.dim;
    task.weighted = !problem.weights.empty();
    for (size_t n = 0; n < problem.codebooks.size(); ++n) {
      add_level(problem.codebooks[n].select(0, head), task.weighted ? problem.weights[n] : 1);
    }
    task.products = products && multiply();
    // No level starts with more paths than exist.
    const auto width = widths(problem);
    task.beam = *std::max_element(width.begin(), width.end());
  }

  void add_level(const at::Tensor& codebook, double weight) {
    const int64_t size = codebook.size(0), dim = task.dim;
    Facts facts(size);
    at::Tensor finite_codes = codebook;
    for (int64_t k = 0; k < size; ++k) {
      const float* const code = codebook.const_data_ptr<float>() + k * dim;
      const double square = kernels::squared_norm(code, dim);
      facts.excluded[k] = !std::isfinite(square);
      facts.norms[k] = facts.excluded[k] ? 0 : std::sqrt(square) * kernels::kNormSlack;
      facts.half[k] = facts.excluded[k] ? HUGE_VALF : static_cast<float>(square / 2);
      if (!facts.excluded[k]) continue;
      if (finite_codes.is_same(codebook)) finite_codes = codebook.clone();
      std::fill_n(finite_codes.mutable_data_ptr<float>() + k * dim, dim, 0.0F);
    }
    kernels::BeamLevel level;
    level.codes = codebook.const_data_ptr<float>();
    level.excluded = facts.excluded.data();
    level.norms = facts.norms.data();
    level.size = size;
    level.finite = std::count(level.excluded, level.excluded + size, false);
    level.radius = *std::max_element(level.norms, level.norms + size);
    level.weight = weight;
    packed.push_back(std::make_unique<kernels::BeamPanels>(finite_codes.const_data_ptr<float>(),
                                                           facts.half.data(), size, dim,
                                                           level.radius, kernels::cpu_level()));
    level.panels = packed.back().get();
    finite.push_back(std::move(finite_codes));
    facts_of.push_back(std::move(facts));
    task.levels.push_back(std::move(level));
  }

  /// Multiplies the codes of each level with those of the levels before. False if there are too many
  /// products, or codes that cannot be scaled.
  bool multiply() {
    const auto scaled = [](const auto& level) { return level.radius < kernels::kLargestCoarse; };
    if (product_count() > kMostProducts || task.levels.size() > kMostLevels ||
        !std::all_of(task.levels.begin(), task.levels.end(), scaled)) {
      return false;
    }
    double earlier = 0;
    cross = kernels::AlignedBuffer<int16_t>(product_count());
    int16_t* to = cross.data();
    for (size_t n = 0; n < task.levels.size(); ++n) {
      auto& level = task.levels[n];
      // The sum over the earlier levels of the largest products, by Cauchy-Schwarz.
      const double most = earlier * level.radius;
      level.unit = static_cast<float>(std::max(most / kLargestProduct, kernels::kFloatTiny));
      for (size_t m = 0; m < n; ++m) to = multiply(m, level, to);
      earlier += level.radius;
    }
    return true;
  }

  int64_t product_count() const {
    int64_t count = 0, earlier = 0;
    for (const auto& level : task.levels) {
      count += earlier * level.panels->stride();
      earlier += level.size;
    }
    return count;
  }

  /// Writes the products of the codes of level m with those of `level` to `to`; returns their end.
  int16_t* multiply(size_t m, kernels::BeamLevel& level, int16_t* to) {
    const auto& earlier = task.levels[m];
    const int64_t dim = task.dim, stride = level.panels->stride();
    at::parallel_for(0, earlier.size, kBlockRows, [&](int64_t begin, int64_t end) {
      const float* const rows = finite[m].const_data_ptr<float>() + begin * dim;
      level.panels->narrow_products({rows, earlier.norms + begin, end - begin}, level.unit,
                                    to + begin * stride);
    });
    level.products.push_back(to);
    return to + earlier.size * stride;
  }

  kernels::BeamTask task;
  std::vector<at::Tensor> finite;  ///< the codebooks, with zeros for excluded codes
  std::vector<Facts> facts_of;
  kernels::AlignedBuffer<int16_t> cross;
  std::vector<std::unique_ptr<kernels::BeamPanels>> packed;
};

int64_t block_rows(const kernels::BeamTask& task) {
  int64_t numbers = task.dim * task.beam;
  for (const auto& level : task.levels) {
    numbers = std::max(numbers, level.size * (task.products ? 1 : task.beam));
  }
  return std::clamp<int64_t>(kBlockNumbers / numbers, 1, kBlockRows);
}

void search_rows(const Prepared& prepared, const float* x, int64_t begin, int64_t end,
                 int64_t* indices) {
  const auto& task = prepared.task;
  const int64_t step = std::min(block_rows(task), end - begin);
  kernels::ResidualBeam search(task, kernels::cpu_level(), step);
  for (; begin < end; begin += step) {
    search.begin(x + begin * task.dim, std::min(step, end - begin));
    for (size_t n = 0; n < task.levels.size(); ++n) search.step();
    search.finish(indices + begin * static_cast<int64_t>(task.levels.size()));
  }
}

at::Tensor search(const BeamProblem& problem) {
  const auto used = static_cast<int64_t>(problem.codebooks.size());
  auto indices =
      at::empty({problem.heads, problem.tokens, used}, problem.x.options().dtype(at::kLong));
  const bool products = wants_products(problem);
  for (int64_t head = 0; head < problem.heads && problem.tokens > 0; ++head) {
    const Prepared prepared(problem, head, products);
    const float* const x = problem.x.const_data_ptr<float>() + head * problem.tokens * problem.dim;
    int64_t* const to = indices.mutable_data_ptr<int64_t>() + head * problem.tokens * used;
    at::parallel_for(0, problem.tokens, kBlockRows / 4,
                     [&](int64_t begin, int64_t end) { search_rows(prepared, x, begin, end, to); });
  }
  return indices;
}

bool kernel_takes(const BeamProblem& problem) {
  bool weighted = true;
  for (const double weight : problem.weights) weighted &= weight > 0;
  return problem.x.scalar_type() == at::kFloat && weighted;
}

at::Tensor residual_beam_search(const at::Tensor& x, at::TensorList codebooks, int64_t beam,
                                const std::optional<at::Tensor>& mask,
                                const std::optional<at::Tensor>& depth,
                                at::ArrayRef<double> weights) {
  const BeamProblem problem("residual_beam_search", x, codebooks, beam, mask, depth, weights);
  const auto indices = problem.greedy()        ? detail::greedy_search(problem)
                       : kernel_takes(problem) ? search(problem)
                                               : detail::beam_search_any(problem);
  return detail::complete_beam_indices(problem, indices, mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("residual_beam_search", residual_beam_search); }

}  // namespace torchvq
