#include "ops/projected_residual_encode.h"

#include <algorithm>
#include <memory>
#include <type_traits>

#include <ATen/Parallel.h>
#include <torch/library.h>

#include "kernels/cpu/nearest_angle.h"
#include "kernels/cpu/projected_residual_encode.h"
#include "kernels/cpu/projected_search.h"
#include "ops/cpu/in_parallel.h"

namespace torchvq {
namespace {

using detail::ProjectedResidualProblem;
using kernels::ProjectedLevelKernel;
using kernels::ProjectedShape;

ProjectedShape shape_of(const ProjectedResidualProblem& problem) {
  return {problem.features, problem.dim};
}

int64_t rows_of(const ProjectedResidualProblem& problem) {
  return problem.x.size(0) * problem.tokens;
}

template <typename T>
kernels::ProjectedSearchTask<T> search_task(const ProjectedResidualProblem& problem, size_t n) {
  const auto& codebook = problem.codebooks[n];
  return {codebook.const_data_ptr<T>(),
          codebook.size(0),
          problem.dim,
          problem.cosine,
          problem.zero_code,
          rows_of(problem)};
}

/// A level with its unpacked codes and weights.
template <typename T>
struct LevelAsItLies {
  LevelAsItLies(const ProjectedResidualProblem& problem, size_t n)
      : codebook(problem.codebooks[n].const_data_ptr<T>()),
        shape(shape_of(problem)),
        kernel(kernels::projected_level<T>(kernels::cpu_level())),
        task(search_task<T>(problem, n)),
        in_weight(problem.in_weights[n].const_data_ptr<T>()),
        in_bias(problem.in_biases[n].const_data_ptr<T>()),
        out_weight(problem.out_weights[n].const_data_ptr<T>()),
        out_bias(problem.out_biases[n].const_data_ptr<T>()) {}

  void project_in(const T* rows, int64_t count, T* latents) const {
    kernel.project_in(shape, rows, count, in_weight, in_bias, latents);
  }

  const T* codebook;
  ProjectedShape shape;
  ProjectedLevelKernel<T> kernel;
  kernels::ProjectedSearchTask<T> task;
  const T *in_weight, *in_bias, *out_weight, *out_bias;
};

/// A level with packed codes and weights; packing pays off with many rows.
template <typename T>
class PackedLevel : public LevelAsItLies<T> {
 public:
  PackedLevel(const ProjectedResidualProblem& problem, size_t n)
      : LevelAsItLies<T>(problem, n),
        search_(this->task, kernels::cpu_level(), detail::in_parallel),
        packed_(this->kernel.packed_size(this->shape)) {
    this->kernel.pack_out(this->shape, this->out_weight, this->out_bias, packed_.data());
  }

  void search(const T* compared, int64_t count, int64_t* indices) const {
    search_.search(compared, count, indices);
  }

  void take_part(const T* codes, int64_t count, T* rows, T* totals) const {
    this->kernel.take_part(this->shape, packed_.data(), codes, count, rows, totals);
  }

 private:
  kernels::ProjectedSearch<T> search_;
  kernels::AlignedBuffer<T> packed_;
};

/// A level for few rows, compared by angle.
class UnpackedLevel : public LevelAsItLies<float> {
 public:
  using LevelAsItLies<float>::LevelAsItLies;

  void search(const float* compared, int64_t count, int64_t* indices) const {
    const auto level = kernels::cpu_level();
    if (kernels::nearest_angle(compared, count, codebook, task.size, level, indices)) return;
    kernels::ProjectedSearch<float>(task, level, detail::in_parallel)
        .search(compared, count, indices);
  }

  void take_part(const float* codes, int64_t count, float* rows, float* totals) const {
    kernel.take_part_unpacked(shape, out_weight, out_bias, codes, count, rows, totals);
  }
};

constexpr int64_t kFewestUnpacked = 8;  // rows per task

bool worth_unpacked_levels(const ProjectedResidualProblem& problem) {
  const auto few = [&](const at::Tensor& codebook) {
    return kernels::has_few_angles(rows_of(problem), problem.dim, codebook.size(0));
  };
  return problem.cosine && problem.x.scalar_type() == at::kFloat &&
         std::all_of(problem.codebooks.begin(), problem.codebooks.end(), few);
}

/// Rows per task, enough to outweigh the tens of microseconds that starting a task takes.
int64_t projected_grain(const ProjectedResidualProblem& problem) {
  double products = 0;
  for (const auto& codebook : problem.codebooks) {
    products += static_cast<double>(codebook.size(0) + 2 * problem.features) *
                static_cast<double>(problem.dim);
  }
  return std::max<int64_t>(1, static_cast<int64_t>(0x1p20 / products));
}

template <typename T>
kernels::Clips<const T> clips(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

template <typename T>
kernels::Clips<T> clips_to_write(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr<T>(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

/// Levels are divided among threads; parallel loops within the packing of a
/// level then run serially.
template <typename Level>
std::vector<std::unique_ptr<Level>> make_levels(const ProjectedResidualProblem& problem) {
  std::vector<std::unique_ptr<Level>> levels(problem.codebooks.size());
  const auto count = static_cast<int64_t>(levels.size());
  const int64_t grain = std::is_same_v<Level, UnpackedLevel> ? count : 1;
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    for (auto n = static_cast<size_t>(begin); n < static_cast<size_t>(end); ++n) {
      levels[n] = std::make_unique<Level>(problem, n);
    }
  });
  return levels;
}

template <typename T, typename Level>
void encode_clips(const ProjectedResidualProblem& problem,
                  const detail::ProjectedResidualTensors& results) {
  const auto levels = make_levels<Level>(problem);
  const auto& [quantized, indices, latents, errors] = results;
  const kernels::ProjectedResidualOutput<T> to = {
      clips_to_write<T>(quantized), clips_to_write<T>(latents), clips_to_write<T>(errors),
      clips_to_write<int64_t>(indices)};
  const auto from = clips<T>(problem.x);
  const auto encode = [&](int64_t begin, int64_t end) {
    kernels::ProjectedResidualEncode<T, Level>(levels, shape_of(problem), problem.cosine,
                                               problem.tokens, kernels::cpu_level())
        .encode(from, begin, end, to);
  };
  // Each task of unpacked levels first computes the norms of all codes.
  const int64_t least = std::is_same_v<Level, UnpackedLevel> ? kFewestUnpacked : 1;
  at::parallel_for(0, rows_of(problem), std::max(least, projected_grain(problem)), encode);
}

detail::ProjectedResidualTensors projected_residual_encode(
    const at::Tensor& x, at::TensorList codebooks, at::TensorList in_weights,
    at::TensorList in_biases, at::TensorList out_weights, at::TensorList out_biases,
    std::string_view metric, double zero_code) {
  const detail::ProjectedResidualArguments arguments = {
      x, codebooks, in_weights, in_biases, out_weights, out_biases, metric, zero_code};
  const ProjectedResidualProblem problem(arguments);
  auto results = detail::projected_residual_results(arguments);
  if (rows_of(problem) == 0) return results;
  if (problem.x.scalar_type() == at::kDouble) {
    encode_clips<double, PackedLevel<double>>(problem, results);
  } else if (worth_unpacked_levels(problem)) {
    encode_clips<float, UnpackedLevel>(problem, results);
  } else {
    encode_clips<float, PackedLevel<float>>(problem, results);
  }
  return results;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("projected_residual_encode", projected_residual_encode);
}

}  // namespace torchvq
