// CUDA: tensor cores screen, and float64 decides what they leave open
// (kernels/cuda/nearest_code.h). For k > 1, torch's matrix product screens and one launch decides.
#include "ops/nearest_code.h"

#include <ATen/ops/empty.h>

#include "kernels/cuda/best_scores.h"
#include "kernels/cuda/nearest_code.h"
#include "ops/any/nearest_code_by.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using detail::NearestCodeProblem;
using detail::NearestCodeTensors;
using namespace detail::TORCHVQ_CUDA_NAMESPACE;
namespace cuda_kernels = kernels::TORCHVQ_CUDA_NAMESPACE;

/// The kernel writes to `indices` through the task.
template <typename T>
cuda_kernels::NearestCodeTask<T> cuda_search_task(
    const NearestCodeProblem& problem, int64_t head,
    int64_t* indices) {  // NOLINT(readability-non-const-parameter)
  cuda_kernels::NearestCodeTask<T> task;
  task.x = problem.x.const_data_ptr<T>() + head * problem.tokens * problem.dim;
  task.codebook = problem.head_codebook(head).template const_data_ptr<T>();
  if (problem.bias.defined()) task.bias = problem.head_bias(head).template const_data_ptr<T>();
  task.tokens = problem.tokens, task.size = problem.size, task.dim = problem.dim;
  task.cosine = problem.cosine;
  task.indices = indices + head * problem.tokens;
  task.fault = static_cast<cuda_kernels::SearchFault>(fault_of_test());
  return task;
}

template <typename T>
void cuda_search_heads(const NearestCodeProblem& problem, const OnDevice& device,
                       at::Tensor& indices, at::Tensor& codes, at::Tensor& distances) {
  constexpr auto op = "nearest_code";
  auto* const all = indices.mutable_data_ptr<int64_t>();
  const auto bytes = cuda_kernels::nearest_code_workspace(cuda_search_task<T>(problem, 0, nullptr),
                                                          device.queue());
  // One workspace for all heads, which run one after the other on the stream.
  const auto workspace =
      at::empty({static_cast<int64_t>(bytes)}, problem.x.options().dtype(at::kByte));
  for (int64_t head = 0; head < problem.heads; ++head) {
    const int64_t first = head * problem.tokens;
    const auto task = cuda_search_task<T>(problem, head, all);
    check_launch(op,
                 cuda_kernels::nearest_code(task, workspace.mutable_data_ptr(), device.queue()));
    cuda_kernels::FoundCodes<T> found = {task};
    if (codes.numel() > 0) found.codes = codes.mutable_data_ptr<T>() + first * problem.dim;
    if (distances.numel() > 0) found.distances = distances.mutable_data_ptr<T>() + first;
    check_launch(op, cuda_kernels::finish_nearest_code(found, device.queue()));
  }
}

/// The k best codes of rows by the exact scores of the contract.
template <typename T>
at::Tensor cuda_decide(const detail::OpenRows& open) {
  const OnDevice device(open.rows);
  const auto rows = open.rows.contiguous(), codes = open.codes.contiguous(),
             scores = open.scores.contiguous(), limit = open.limit.contiguous();
  const auto excluded = open.excluded.contiguous();
  const auto bias = open.bias.defined() ? open.bias.contiguous() : at::Tensor();
  auto chosen = at::empty({rows.size(0), open.k}, rows.options().dtype(at::kLong));
  cuda_kernels::BestScoresTask task;
  task.scores = scores.mutable_data_ptr<double>();
  task.limits = limit.const_data_ptr<double>();
  task.rows = rows.size(0), task.count = codes.size(0), task.best = open.k;
  task.chosen = chosen.mutable_data_ptr<int64_t>();
  task.fault = static_cast<cuda_kernels::BestScoresFault>(fault_of_test());
  cuda_kernels::CodeScores<T> exact;
  exact.x = rows.const_data_ptr<T>(), exact.codes = codes.const_data_ptr<T>();
  exact.excluded = excluded.const_data_ptr<bool>();
  exact.bias = bias.defined() ? bias.const_data_ptr<double>() : nullptr;
  exact.dim = rows.size(1), exact.cosine = open.cosine;
  check_launch("nearest_code", cuda_kernels::nearest_codes(task, exact, device.queue()));
  return chosen;
}

NearestCodeTensors cuda_nearest_code(const at::Tensor& x, const at::Tensor& codebook,
                                     std::string_view metric, const std::optional<at::Tensor>& bias,
                                     std::optional<int64_t> topk, bool return_codes,
                                     bool return_distances, const std::optional<at::Tensor>& mask) {
  detail::check_nearest_code(x, codebook, metric, bias, topk, mask);
  const OnDevice device(x);
  const NearestCodeProblem problem(x, codebook, metric, bias, topk);
  if (problem.k > 1) {
    const auto decide = problem.dtype == at::kDouble ? cuda_decide<double> : cuda_decide<float>;
    auto found = detail::nearest_code_by(x, problem, topk, return_codes, return_distances, decide);
    detail::fill_padding_of(found, mask, topk);
    return found;
  }
  const auto options = problem.x.options();
  const auto shape = detail::nearest_code_sizes(x, topk);
  auto codes_shape = shape;
  codes_shape.push_back(problem.dim);
  auto indices = at::empty(shape, options.dtype(at::kLong));
  auto codes = at::empty(return_codes ? codes_shape : std::vector<int64_t>{0}, options);
  auto distances = at::empty(return_distances ? shape : std::vector<int64_t>{0}, options);
  if (indices.numel() == 0) return {indices, codes, distances};
  if (problem.dtype == at::kDouble) {
    cuda_search_heads<double>(problem, device, indices, codes, distances);
  } else {
    cuda_search_heads<float>(problem, device, indices, codes, distances);
  }
  NearestCodeTensors found{std::move(indices), std::move(codes), std::move(distances)};
  detail::fill_padding_of(found, mask, topk);
  return found;
}

}  // namespace

TORCHVQ_CUDA_KERNEL(nearest_code, cuda_nearest_code)

}  // namespace torchvq
