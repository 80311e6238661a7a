// CUDA: torch computes scores in float64 for a block of tokens at a time, and
// one launch draws from them.
#include "ops/sample_codes.h"

#include <optional>

#include <torchvq/random_purpose.h>

#include "kernels/cuda/sample_codes.h"
#include "ops/any/score_blocks.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;

at::Tensor cuda_sample_codes(const at::Tensor& x, const at::Tensor& codebook,
                             const at::Tensor& rng_, double temperature,
                             c10::string_view metric_name, int64_t stream,
                             std::optional<int64_t> topk) {
  const auto metric = detail::check_sample_codes(x, codebook, rng_, temperature, metric_name, topk);
  if (temperature < detail::kColdestDraw) return detail::nearest_codes(x, codebook, metric, topk);
  const OnDevice device(x);
  const auto rng = rng_.contiguous();
  const auto draw = [&](const at::Tensor& logits, int64_t position) {
    const auto scores = logits.contiguous();
    const int64_t count = topk.value_or(1);
    auto indices = at::empty({scores.size(0), count}, scores.options().dtype(at::kLong));
    kernels::TORCHVQ_CUDA_NAMESPACE::SampleCodesTask task;
    task.scores = scores.const_data_ptr<double>();
    task.rng = rng.const_data_ptr<int64_t>();
    task.purpose = static_cast<uint64_t>(RandomPurpose::kCodeSampling);
    task.stream = static_cast<uint64_t>(stream);
    task.position = static_cast<uint64_t>(position);
    task.rows = scores.size(0), task.size = scores.size(1), task.count = count;
    task.temperature = temperature, task.far = detail::kFarLag;
    task.indices = indices.mutable_data_ptr<int64_t>();
    check_launch("sample_codes",
                 kernels::TORCHVQ_CUDA_NAMESPACE::sample_codes(task, device.queue()));
    return indices;
  };
  return detail::choose_by_score(x, codebook, metric, topk, detail::own_code_scores, draw);
}

}  // namespace

TORCHVQ_CUDA_KERNEL(sample_codes, cuda_sample_codes)

}  // namespace torchvq
