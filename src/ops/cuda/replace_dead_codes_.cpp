// CUDA: finds dead codes and candidates and replaces them in nine launches, which end at once if no
// code is dead. Nothing waits for the device.
#include "ops/replace_dead_codes_.h"

#include <torchvq/random_purpose.h>

#include <ATen/ops/empty.h>

#include "kernels/cuda/dead_codes.h"
#include "ops/cuda/elements.h"
#include "ops/cuda/kernel.h"
#include "ops/dead_code_candidates.h"
#include "ops/replace_with_candidates_.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;
namespace cuda_dead = kernels::TORCHVQ_CUDA_NAMESPACE;

/// The rows in which candidates are searched, and scratch tensors.
class CudaCandidates {
 public:
  /// `codes` is the number of codes that may be live, `most` the number of
  /// candidates wanted per head.
  CudaCandidates(const at::Tensor& x, const at::Tensor& rng, int64_t codes, int64_t most)
      : x_(detail::elements_of(x)), rng_(rng.contiguous()) {
    const int64_t heads = x.size(0), rows = x.size(1);
    task.x = x_.const_data_ptr();
    task.type = detail::element_type(x_);
    task.rng = rng_.const_data_ptr<int64_t>();
    task.purpose = static_cast<uint64_t>(RandomPurpose::kDeadCodeCandidates);
    task.heads = heads, task.rows = rows, task.dim = x.size(2), task.most = most;
    task.slots = cuda_dead::candidate_slots(rows, codes);
    found = at::empty({heads}, rng_.options());
    task.found = found.mutable_data_ptr<int64_t>();
    words_ = at::empty({heads * (most + 2 * task.slots + cuda_dead::kCandidateBinWords + 2 * rows)},
                       found.options());
    auto* next = words_.mutable_data_ptr<int64_t>();
    const auto take = [&](int64_t count) { return std::exchange(next, next + heads * count); };
    task.chosen = take(most);
    task.bins = take(cuda_dead::kCandidateBinWords);
    task.table_keys = reinterpret_cast<uint64_t*>(take(task.slots));
    task.table_rows = reinterpret_cast<uint64_t*>(take(task.slots));
    task.listed_keys = reinterpret_cast<uint64_t*>(take(rows));
    task.listed_rows = reinterpret_cast<uint64_t*>(take(rows));
  }

  void use_mask(const std::optional<at::Tensor>& mask) {
    if (!mask) return;
    mask_ = mask->expand({task.heads, task.rows}).contiguous();
    task.mask = mask_.const_data_ptr<bool>();
  }

  cuda_dead::CandidateTask task;
  at::Tensor found;  // (H,)

 private:
  at::Tensor x_, rng_, mask_, words_;
};

/// Strided state is updated in a contiguous copy and written back.
template <typename T>
void cuda_replace_state(const char* op, cuda_dead::DeadCodeTask& task,
                        const CudaCandidates& candidates, const detail::CodebookState& state,
                        const OnDevice& device) {
  auto sizes = state.cluster_size.contiguous(), averages = state.embed_avg.contiguous(),
       codes = state.embed.contiguous(), cooldown = state.cooldown.contiguous();
  task.cooldown = cooldown.mutable_data_ptr();
  task.long_cooldown = cooldown.scalar_type() == at::kLong;
  const cuda_dead::DeadCodeState<T> pointers = {
      sizes.mutable_data_ptr<T>(), averages.mutable_data_ptr<T>(), codes.mutable_data_ptr<T>()};
  check_launch(op, cuda_dead::replace_dead_codes(task, candidates.task, pointers, device.queue()));
  if (!sizes.is_same(state.cluster_size)) state.cluster_size.copy_(sizes);
  if (!averages.is_same(state.embed_avg)) state.embed_avg.copy_(averages);
  if (!codes.is_same(state.embed)) state.embed.copy_(codes);
  if (!cooldown.is_same(state.cooldown)) state.cooldown.copy_(cooldown);
}

at::Tensor cuda_replace(const char* op, CudaCandidates& candidates,
                        const detail::CodebookState& state, const at::Tensor& counts_,
                        const detail::DeadCodeArguments& arguments, const OnDevice& device) {
  const auto counts = counts_.contiguous();
  const int64_t heads = state.embed.size(0), size = state.embed.size(1);
  const auto numbers =
      at::empty({heads * (size + 1)}, counts.options().dtype(at::kDouble));  // sizes and resets
  const auto places = at::empty({2 * heads}, counts.options());
  cuda_dead::DeadCodeTask task;
  task.counts = counts.const_data_ptr<int64_t>();
  task.size = size;
  task.threshold = arguments.threshold;
  task.threshold_fraction = arguments.threshold_fraction;
  task.reset_cluster_size = arguments.reset_cluster_size;
  task.cooldown_steps = arguments.cooldown_steps;
  task.dead_sizes = numbers.mutable_data_ptr<double>();
  task.reset = task.dead_sizes + heads * size;
  task.dead = places.mutable_data_ptr<int64_t>();
  task.last = task.dead + heads;
  candidates.task.wanted = task.dead;
  if (state.embed.scalar_type() == at::kDouble) {
    cuda_replace_state<double>(op, task, candidates, state, device);
  } else {
    cuda_replace_state<float>(op, task, candidates, state, device);
  }
  return candidates.found;
}

at::Tensor cuda_replace_dead_codes_(at::Tensor& embed, at::Tensor& embed_avg,
                                    at::Tensor& cluster_size, at::Tensor& cooldown,
                                    const at::Tensor& x, const at::Tensor& counts,
                                    const at::Tensor& rng, const std::optional<at::Tensor>& mask,
                                    double threshold, double threshold_fraction,
                                    double reset_cluster_size, int64_t cooldown_steps,
                                    std::string_view metric) {
  const detail::CodebookState state{embed, embed_avg, cluster_size, cooldown};
  const detail::DeadCodeArguments arguments{threshold, threshold_fraction, reset_cluster_size,
                                            cooldown_steps};
  const bool unit =
      detail::check_replace_dead_codes_(state, x, counts, rng, mask, arguments, metric);
  const OnDevice device(embed);
  CudaCandidates candidates(x, rng, embed.size(1), embed.size(1));
  candidates.use_mask(mask);
  candidates.task.unit = unit;
  return cuda_replace("replace_dead_codes_", candidates, state, counts, arguments, device);
}

at::Tensor cuda_replace_with_candidates_(at::Tensor& embed, at::Tensor& embed_avg,
                                         at::Tensor& cluster_size, at::Tensor& cooldown,
                                         const at::Tensor& keys_, const at::Tensor& rows,
                                         const at::Tensor& counts, const at::Tensor& rng,
                                         double threshold, double threshold_fraction,
                                         double reset_cluster_size, int64_t cooldown_steps) {
  const detail::CodebookState state{embed, embed_avg, cluster_size, cooldown};
  const detail::DeadCodeArguments arguments{threshold, threshold_fraction, reset_cluster_size,
                                            cooldown_steps};
  detail::check_replace_with_candidates_(state, keys_, rows, counts, rng, arguments);
  const OnDevice device(embed);
  const auto keys = keys_.contiguous();
  CudaCandidates candidates(rows, rng, embed.size(1), embed.size(1));
  candidates.task.keys = keys.const_data_ptr<int64_t>();
  return cuda_replace("replace_with_candidates_", candidates, state, counts, arguments, device);
}

std::tuple<at::Tensor, at::Tensor> cuda_dead_code_candidates(const at::Tensor& x,
                                                             const at::Tensor& rng, int64_t count,
                                                             const std::optional<at::Tensor>& mask,
                                                             std::string_view metric) {
  const bool unit = detail::check_dead_code_candidates(x, rng, count, mask, metric);
  const OnDevice device(x);
  CudaCandidates candidates(x, rng, 0, count);
  candidates.use_mask(mask);
  candidates.task.unit = unit;
  auto keys = at::empty({x.size(0), count}, rng.options());
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  auto rows = at::empty({x.size(0), count, x.size(2)}, x.options().dtype(dtype));
  check_launch("dead_code_candidates",
               cuda_dead::dead_code_candidates(candidates.task, keys.mutable_data_ptr<int64_t>(),
                                               rows.mutable_data_ptr(), device.queue()));
  return {keys, rows};
}

}  // namespace

TORCHVQ_CUDA_KERNEL(replace_dead_codes_, cuda_replace_dead_codes_)
TORCHVQ_CUDA_KERNEL(replace_with_candidates_, cuda_replace_with_candidates_)
TORCHVQ_CUDA_KERNEL(dead_code_candidates, cuda_dead_code_candidates)

}  // namespace torchvq
