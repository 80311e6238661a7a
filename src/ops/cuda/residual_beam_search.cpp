// CUDA: a matrix product screens the extensions of all paths, and two launches per level decide and
// extend them on the device. Nothing waits for the device.
#include "ops/residual_beam_search.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>

#include "kernels/cuda/best_scores.h"
#include "ops/any/beam_paths.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;
namespace cuda_beam = kernels::TORCHVQ_CUDA_NAMESPACE;

/// (t,): extensions with higher scores are not among the best `count`. The error is doubled to
/// cover its own rounding and that of the sum.
at::Tensor cuda_beam_limits(const detail::ScreenedBeam& screened, int64_t count) {
  if (count == screened.scores.size(1))
    return at::full_like(screened.error, std::numeric_limits<double>::infinity());
  const auto best = std::get<0>(screened.scores.topk(count, -1, /*largest=*/false));
  return std::get<0>(best.max(-1)) + screened.error * 2;
}

template <typename T>
detail::BeamPaths cuda_extend(const detail::BeamPaths& paths, const detail::BeamCodes& level,
                              int64_t count) {
  const OnDevice device(level.codes);
  const detail::ScreenedBeam screened(paths, level);
  const auto scores = screened.scores.contiguous();
  const auto limits = cuda_beam_limits(screened, count).contiguous();
  const auto left = paths.residual.contiguous(), before = paths.score.contiguous(),
             indices = paths.indices.contiguous();
  const int64_t rows = left.size(0), dim = left.size(2), levels = indices.size(2);
  const auto chosen = at::empty({rows, count}, indices.options());
  const detail::BeamPaths next = {at::empty({rows, count, dim}, left.options()),
                                  at::empty({rows, count}, before.options()),
                                  at::empty({rows, count, levels + 1}, indices.options())};
  cuda_beam::BestScoresTask task;
  task.scores = scores.mutable_data_ptr<double>();
  task.limits = limits.const_data_ptr<double>();
  task.rows = rows, task.count = scores.size(1), task.best = count;
  task.chosen = chosen.mutable_data_ptr<int64_t>();
  task.fault = static_cast<cuda_beam::BestScoresFault>(fault_of_test());
  cuda_beam::BeamPaths<T> step;
  step.left = left.const_data_ptr<T>(), step.score = before.const_data_ptr<double>();
  step.indices = indices.const_data_ptr<int64_t>();
  step.codes = level.codes.const_data_ptr<T>();
  step.excluded = level.excluded.const_data_ptr<bool>();
  step.width = left.size(1), step.size = level.codes.size(0), step.dim = dim, step.level = levels;
  step.weight = level.weight, step.adds = level.adds;
  step.next_left = next.residual.mutable_data_ptr<T>();
  step.next_score = next.score.mutable_data_ptr<double>();
  step.next_indices = next.indices.mutable_data_ptr<int64_t>();
  check_launch("residual_beam_search", cuda_beam::extend_paths(task, step, device.queue()));
  return next;
}

at::Tensor cuda_residual_beam_search(const at::Tensor& x, at::TensorList codebooks, int64_t beam,
                                     const std::optional<at::Tensor>& mask,
                                     const std::optional<at::Tensor>& depth,
                                     at::ArrayRef<double> weights) {
  const detail::BeamProblem problem("residual_beam_search", x, codebooks, beam, mask, depth,
                                    weights);
  const bool wide = problem.x.scalar_type() == at::kDouble;
  const auto indices =
      problem.greedy()
          ? detail::greedy_search(problem)
          : detail::beam_search_by(problem, wide ? &cuda_extend<double> : &cuda_extend<float>);
  return detail::complete_beam_indices(problem, indices, mask);
}

}  // namespace

TORCHVQ_CUDA_KERNEL(residual_beam_search, cuda_residual_beam_search)

}  // namespace torchvq
