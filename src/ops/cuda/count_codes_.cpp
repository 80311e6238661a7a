// CUDA: two launches per 32 levels, for any number of heads.
#include "ops/count_codes_.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/count_codes_.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

void cuda_count_codes_(at::TensorList counts, at::TensorList indices) {
  detail::check_count_codes_(counts, indices);
  if (counts.empty()) return;
  const OnDevice device(counts[0]);
  std::vector<at::Tensor> held;
  for (const auto& tensor : indices) held.push_back(tensor.contiguous());
  constexpr size_t kMost = kernels::TORCHVQ_CUDA_NAMESPACE::kMostCountedLevels;
  for (size_t first = 0; first < counts.size(); first += kMost) {
    kernels::TORCHVQ_CUDA_NAMESPACE::CountCodesTask task;
    for (size_t q = first; q < std::min(counts.size(), first + kMost); ++q) {
      auto& level = task.levels[task.level_count++];
      level.counts = counts[q].mutable_data_ptr<int64_t>();
      level.heads = counts[q].size(0), level.size = counts[q].size(1);
      if (q >= held.size()) continue;
      level.indices = held[q].const_data_ptr<int64_t>();
      level.tokens = held[q].size(1);
    }
    check_launch("count_codes_",
                 kernels::TORCHVQ_CUDA_NAMESPACE::count_codes_(task, device.queue()));
  }
}

}  // namespace

TORCHVQ_CUDA_KERNEL(count_codes_, cuda_count_codes_)

}  // namespace torchvq
