// Prepares the levels of a beam search once per call, and passes blocks of tokens to the kernel.
#include "ops/residual_beam_search.h"

#include <algorithm>
#include <memory>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "kernels/cpu/residual_beam.h"

namespace torchvq {
namespace {

using detail::BeamProblem;

constexpr int64_t kBlockRows = 64, kLargeBlockRows = 256;
constexpr int64_t kLargeCodebook = 512;  // above, larger blocks reuse products that are in cache
constexpr int64_t kBlockNumbers = int64_t{1} << 19;  // of residuals or products of a block

/// The user may let torch round the inputs of matrix products; the kernel's error
/// bound does not cover that.
bool float_products_are_exact() {
  const auto precision =
      at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::MATMUL);
  return precision != at::Float32Precision::TF32 && precision != at::Float32Precision::BF16;
}

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
  constexpr double kGather = 4;  // how much slower summing gathered rows is than a product
  const auto width = widths(problem);
  double products = 0, paths = 0, earlier = 0;
  for (size_t n = 0; n < width.size(); ++n) {
    const auto size = static_cast<double>(problem.codebooks[n].size(1));
    const auto dim = static_cast<double>(problem.dim), rows = static_cast<double>(problem.tokens);
    const auto count = static_cast<double>(width[n]);
    products += rows * size * dim + earlier * size * dim +
                rows * count * size * static_cast<double>(n) * kGather;
    paths += rows * count * size * dim;
    earlier += size;
  }
  return products < paths;
}

/// The levels of one head in the form that the kernel needs.
struct Prepared {
  Prepared(const BeamProblem& problem, int64_t head, bool products) {
    task.dim = problem.dim;
    task.weighted = !problem.weights.empty();
    task.products = products;
    for (size_t n = 0; n < problem.codebooks.size(); ++n) {
      add_level(problem.codebooks[n].select(0, head), task.weighted ? problem.weights[n] : 1);
    }
    // No level starts with more paths than exist.
    const auto width = widths(problem);
    task.beam = *std::max_element(width.begin(), width.end());
  }

  void add_level(const at::Tensor& codebook, double weight) {
    const auto absent = codebook.isfinite().all(-1).logical_not_();
    codes.push_back(codebook);
    finite.push_back(codebook.masked_fill(absent.unsqueeze(-1), 0));
    const auto squares = finite.back().to(at::kDouble).square().sum(-1);
    const auto half = (squares * 0.5).to(at::kFloat).masked_fill_(absent, HUGE_VALF);
    excluded.push_back(absent);
    norms.push_back(squares.sqrt());
    kernels::BeamLevel level;
    packed.push_back(std::make_unique<kernels::BeamPanels>(
        finite.back().const_data_ptr<float>(), half.const_data_ptr<float>(), codebook.size(0),
        task.dim, kernels::cpu_level()));
    level.panels = packed.back().get();
    level.codes = codebook.const_data_ptr<float>();
    level.excluded = absent.const_data_ptr<bool>();
    level.norms = norms.back().const_data_ptr<double>();
    level.size = codebook.size(0);
    level.finite = level.size - absent.sum().item<int64_t>();
    level.radius = norms.back().max().item<double>();
    level.weight = weight;
    for (size_t m = 0; task.products && m + 1 < finite.size(); ++m) {
      cross.push_back(at::mm(finite[m], finite.back().t()));
      level.products.push_back(cross.back().const_data_ptr<float>());
    }
    task.levels.push_back(std::move(level));
  }

  kernels::BeamTask task;
  std::vector<at::Tensor> codes, finite, excluded, norms, cross;
  std::vector<std::unique_ptr<kernels::BeamPanels>> packed;
};

int64_t block_rows(const kernels::BeamTask& task) {
  int64_t numbers = task.dim * task.beam, largest = 0;
  for (const auto& level : task.levels) {
    numbers = std::max(numbers, level.size * (task.products ? 1 : task.beam));
    largest = std::max(largest, level.size);
  }
  const int64_t most = task.products && largest > kLargeCodebook ? kLargeBlockRows : kBlockRows;
  return std::clamp<int64_t>(kBlockNumbers / numbers, 1, most);
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
  return problem.x.scalar_type() == at::kFloat && weighted && float_products_are_exact();
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
