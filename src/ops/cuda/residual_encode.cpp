// CUDA: all levels in one kernel if a tile of rows fits a block's shared memory, otherwise level
// after level by the search of nearest_code. Neither waits for the device.
#include "ops/residual_encode.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include "kernels/cuda/nearest_code.h"
#include "kernels/cuda/residual_encode.h"
#include "kernels/cuda/residual_stack.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using detail::ResidualEncodeProblem;
using namespace detail::TORCHVQ_CUDA_NAMESPACE;

/// Encodes all heads with the levels in use, one level at a time.
template <typename T>
class CudaResidualWalk {
 public:
  CudaResidualWalk(const ResidualEncodeProblem& problem, const OnDevice& device)
      : problem_(problem),
        left_(at::empty({problem.tokens, problem.dim}, problem.x.options())),
        found_(at::empty({problem.tokens}, problem.x.options().dtype(at::kLong))) {
    size_t bytes = 0;
    for (const auto& codebook : problem.codebooks) {
      bytes = std::max(bytes, kernels::TORCHVQ_CUDA_NAMESPACE::nearest_code_workspace(
                                  search_of(codebook, 0), device.queue()));
    }
    workspace_ = at::empty({static_cast<int64_t>(bytes)}, problem.x.options().dtype(at::kByte));
  }

  void run(int64_t head, at::Tensor& quantized, at::Tensor& indices, const OnDevice& device) {
    constexpr auto op = "residual_encode";
    const int64_t first = head * problem_.tokens;
    kernels::TORCHVQ_CUDA_NAMESPACE::ResidualRows<T> rows;
    rows.x = problem_.x.const_data_ptr<T>() + first * problem_.dim;
    rows.mask = problem_.mask.defined() ? problem_.mask.const_data_ptr<bool>() + first : nullptr;
    rows.rows = problem_.tokens, rows.dim = problem_.dim;
    rows.left = left_.mutable_data_ptr<T>();
    rows.quantized = quantized.mutable_data_ptr<T>() + first * problem_.dim;
    rows.indices = indices.mutable_data_ptr<int64_t>() + first * problem_.levels;
    rows.stride = problem_.levels;
    check_launch(op, kernels::TORCHVQ_CUDA_NAMESPACE::residual_begin(rows, device.queue()));
    for (size_t n = 0; n < problem_.codebooks.size(); ++n) {
      const auto search = search_of(problem_.codebooks[n], head);
      check_launch(op, kernels::TORCHVQ_CUDA_NAMESPACE::nearest_code(
                           search, workspace_.mutable_data_ptr(), device.queue()));
      kernels::TORCHVQ_CUDA_NAMESPACE::ResidualChoice<T> choice;
      choice.codes = search.codebook;
      choice.found = search.indices;
      choice.level = static_cast<int64_t>(n);
      check_launch(op,
                   kernels::TORCHVQ_CUDA_NAMESPACE::residual_take(rows, choice, device.queue()));
    }
  }

 private:
  kernels::TORCHVQ_CUDA_NAMESPACE::NearestCodeTask<T> search_of(const at::Tensor& codebook,
                                                                int64_t head) {
    kernels::TORCHVQ_CUDA_NAMESPACE::NearestCodeTask<T> task;
    task.x = left_.const_data_ptr<T>();
    task.codebook = codebook.const_data_ptr<T>() + head * codebook.size(-2) * problem_.dim;
    task.tokens = problem_.tokens, task.size = codebook.size(-2), task.dim = problem_.dim;
    task.cosine = problem_.cosine;
    task.indices = found_.mutable_data_ptr<int64_t>();
    task.fault = static_cast<kernels::TORCHVQ_CUDA_NAMESPACE::SearchFault>(fault_of_test());
    return task;
  }

  const ResidualEncodeProblem& problem_;
  at::Tensor left_, found_, workspace_;
};

template <typename T>
void cuda_encode_heads(const ResidualEncodeProblem& problem, at::Tensor& quantized,
                       at::Tensor& indices, const OnDevice& device) {
  CudaResidualWalk<T> walk(problem, device);
  for (int64_t head = 0; head < problem.heads; ++head) {
    walk.run(head, quantized, indices, device);
  }
}

/// Arguments of the kernel for all levels; without levels if there are more than it supports.
kernels::TORCHVQ_CUDA_NAMESPACE::ResidualStackTask cuda_stack_task(
    const ResidualEncodeProblem& problem) {
  kernels::TORCHVQ_CUDA_NAMESPACE::ResidualStackTask task;
  task.x = problem.x.const_data_ptr<float>();
  task.mask = problem.mask.defined() ? problem.mask.const_data_ptr<bool>() : nullptr;
  task.heads = problem.heads, task.tokens = problem.tokens, task.dim = problem.dim;
  task.stride = problem.levels, task.cosine = problem.cosine;
  task.fault = static_cast<kernels::TORCHVQ_CUDA_NAMESPACE::SearchFault>(fault_of_test());
  if (problem.codebooks.size() > kernels::TORCHVQ_CUDA_NAMESPACE::kMostStackLevels) return task;
  for (const auto& codebook : problem.codebooks) {
    task.codebooks[task.levels] = codebook.const_data_ptr<float>();
    task.sizes[task.levels++] = codebook.size(-2);
  }
  return task;
}

/// Encodes all levels and heads at once; returns false, without any effect,
/// if that is not possible.
bool cuda_encode_stack(const ResidualEncodeProblem& problem, at::Tensor& quantized,
                       at::Tensor& indices, const OnDevice& device) {
  auto task = cuda_stack_task(problem);
  const int rows = kernels::TORCHVQ_CUDA_NAMESPACE::residual_stack_rows(task, device.queue());
  if (rows == 0) return false;
  indices = at::empty({problem.heads, problem.tokens, problem.levels},
                      problem.x.options().dtype(at::kLong));
  task.quantized = quantized.mutable_data_ptr<float>();
  task.indices = indices.mutable_data_ptr<int64_t>();
  const auto bytes = kernels::TORCHVQ_CUDA_NAMESPACE::residual_stack_workspace(task);
  const auto workspace =
      at::empty({static_cast<int64_t>(bytes)}, problem.x.options().dtype(at::kByte));
  check_launch("residual_encode", kernels::TORCHVQ_CUDA_NAMESPACE::residual_stack(
                                      task, rows, workspace.mutable_data_ptr(), device.queue()));
  return true;
}

detail::ResidualEncodeTensors cuda_residual_encode(const at::Tensor& x, at::TensorList codebooks,
                                                   std::string_view metric,
                                                   const std::optional<at::Tensor>& depth,
                                                   const std::optional<at::Tensor>& mask,
                                                   std::optional<at::TensorList> prepared) {
  const ResidualEncodeProblem problem(x, codebooks, metric, depth, mask, prepared);
  const OnDevice device(problem.x);
  auto quantized = at::empty(problem.x.sizes(), problem.x.options());
  at::Tensor indices;  // only the kernel for all levels writes every index
  const bool wide = problem.x.scalar_type() == at::kDouble;
  if (!wide && problem.heads * problem.tokens > 0 &&
      cuda_encode_stack(problem, quantized, indices, device)) {
    return problem.of_all_heads(quantized, indices);
  }
  indices = at::full({problem.heads, problem.tokens, problem.levels}, -1,
                     problem.x.options().dtype(at::kLong));
  if (indices.numel() == 0) return problem.of_all_heads(quantized, indices);
  if (wide) {
    cuda_encode_heads<double>(problem, quantized, indices, device);
  } else {
    cuda_encode_heads<float>(problem, quantized, indices, device);
  }
  return problem.of_all_heads(quantized, indices);
}

}  // namespace

TORCHVQ_CUDA_KERNEL(residual_encode, cuda_residual_encode)

}  // namespace torchvq
