#include "kernels/cuda/code_exponents.h"

#include "kernels/cuda/code_exponents-inl.h"
#include "kernels/cuda/elements-inl.h"
#include "kernels/cuda/steps-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr unsigned kExponentThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kExponentThreads) find_exponents(Tasks<CodeExponentsTask> tasks) {
  find_own_exponents<T>(tasks.of[blockIdx.y]);
}

__global__ void __launch_bounds__(kExponentThreads) raise_to_mean(Tasks<CodeExponentsTask> tasks) {
  const CodeExponentsTask& task = tasks.of[blockIdx.y];
  const int64_t codes = task.heads * task.size;
  for (int64_t code = grid_thread(); code < codes; code += grid_threads())
    task.exponents[code] = raised_to_mean(task.exponents[code], task.totals + code / task.size * 2);
}

template <typename T>
Error run(const Tasks<CodeExponentsTask>& tasks, int64_t codes, const Queue& queue) {
  Steps steps(queue);
  steps.run(find_exponents<T>, {blocks_for(codes, kExponentThreads / kWarp), tasks.count},
            kExponentThreads, 0, tasks);
  steps.run(raise_to_mean, {blocks_for(codes, kExponentThreads), tasks.count}, kExponentThreads, 0,
            tasks);
  return steps.error();
}

}  // namespace

Error code_exponents(const Tasks<CodeExponentsTask>& tasks, const Queue& queue) {
  const int64_t codes =
      tasks.most([](const CodeExponentsTask& task) { return task.heads * task.size; });
  if (codes == 0) return nullptr;
  return for_element_type(tasks.of[0].type,
                          [&]<typename T>(Element<T>) { return run<T>(tasks, codes, queue); });
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
