// CPU: blocks of tokens, those of the sums of the losses, pass all levels while they are in cache.
#include "ops/residual_commit.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/residual_arguments.h"
#include "kernels/cpu/commitment_loss.h"
#include "kernels/cpu/token_rows.h"
#include "ops/cpu/mean_squared_difference.h"
#include "ops/unit_vectors.h"

namespace torchvq {
namespace {

template <typename T>
struct CodesOfLevel {
  at::Tensor held;  ///< keeps the contiguous codes alive
  const T* codebook;
  int64_t size;
  int64_t head_stride;  ///< codes between heads
};

template <typename T>
std::vector<CodesOfLevel<T>> codes_of(at::TensorList codebooks, at::ScalarType dtype) {
  std::vector<CodesOfLevel<T>> levels;
  for (const auto& codebook : codebooks) {
    auto held = detail::contiguous_as(codebook, dtype);
    const auto* const data = held.const_data_ptr<T>();
    const int64_t size = codebook.size(-2);
    levels.push_back({std::move(held), data, size, detail::is_shared(codebook) ? 0 : size});
  }
  return levels;
}

template <typename T>
void check_committed_range(const at::Tensor& indices, const std::vector<CodesOfLevel<T>>& levels) {
  const auto* index = indices.const_data_ptr<int64_t>();
  const int64_t rows = indices.size(0) * indices.size(1);
  for (int64_t row = 0; row < rows; ++row) {
    for (const auto& level : levels) {
      TORCH_CHECK_INDEX(*index >= 0 && *index < level.size,
                        "residual_commit: expected indices to be in [0, ", level.size,
                        "), but got ", *index);
      ++index;
    }
  }
}

template <typename T>
struct Commitment {
  std::vector<CodesOfLevel<T>> levels;
  const T* x;              ///< (rows, dim)
  const int64_t* indices;  ///< (rows, levels)
  const bool* mask;        ///< (rows,), or null
  int64_t rows, tokens, dim;
  T* quantized;      ///< (rows, dim)
  T* residuals;      ///< (levels, rows, dim)
  double* partials;  ///< (levels, blocks): sums of squares

  int64_t block() const { return kernels::rows_of_squared_differences(dim); }
  int64_t blocks() const { return (rows + block() - 1) / block(); }
  int64_t count() const { return static_cast<int64_t>(levels.size()); }

  const T* code_of(int64_t row, int64_t level) const {
    const auto& own = levels[static_cast<size_t>(level)];
    const int64_t index = row / tokens * own.head_stride + indices[row * count() + level];
    return own.codebook + index * dim;
  }

  /// `codes` has room for the rows of a block.
  void run_block(int64_t number, const kernels::TokenRowsOf<T>& kernel,
                 std::vector<const T*>& codes) const {
    const int64_t first = number * block(), here = std::min(block(), rows - first);
    T* const sums = quantized + first * dim;
    std::fill_n(sums, here * dim, T(0));
    const T* residual = x + first * dim;
    for (int64_t level = 0; level < count(); ++level) {
      for (int64_t row = 0; row < here; ++row) codes[row] = code_of(first + row, level);
      T* const left = residuals + (level * rows + first) * dim;
      partials[level * blocks() + number] = kernel.commit(
          {residual, codes.data(), mask == nullptr ? nullptr : mask + first, sums, left}, here,
          dim);
      residual = left;
    }
  }
};

template <typename T>
detail::ResidualCommitTensors commit(const at::Tensor& x, at::TensorList codebooks,
                                     const at::Tensor& indices, const at::Tensor& mask) {
  const auto levels = static_cast<int64_t>(codebooks.size());
  auto quantized = at::empty(x.sizes(), x.options());
  auto residuals = at::empty({levels, x.size(0), x.size(1), x.size(2)}, x.options());
  auto losses = at::empty({levels}, x.options());
  Commitment<T> task{.levels = codes_of<T>(codebooks, x.scalar_type()),
                     .x = x.const_data_ptr<T>(),
                     .indices = indices.const_data_ptr<int64_t>(),
                     .mask = mask.defined() ? mask.const_data_ptr<bool>() : nullptr,
                     .rows = x.size(0) * x.size(1),
                     .tokens = x.size(1),
                     .dim = x.size(2),
                     .quantized = quantized.mutable_data_ptr<T>(),
                     .residuals = residuals.mutable_data_ptr<T>(),
                     .partials = nullptr};
  check_committed_range(indices, task.levels);
  std::vector<double> partials(static_cast<size_t>(levels * task.blocks()));
  task.partials = partials.data();
  const auto kernel = kernels::token_rows_kernel<T>(kernels::cpu_level());
  const int64_t grain = 1 + 16384 / (task.dim * levels * task.block() + 1);
  at::parallel_for(0, task.blocks(), grain, [&](int64_t begin, int64_t end) {
    std::vector<const T*> codes(static_cast<size_t>(std::min(task.block(), task.rows)));
    for (int64_t i = begin; i < end; ++i) task.run_block(i, kernel, codes);
  });
  const int64_t count = detail::count_tokens(task.mask, task.rows) * task.dim;
  auto* const means = losses.mutable_data_ptr<T>();
  for (int64_t level = 0; level < levels; ++level) {
    double total = 0;
    for (int64_t i = 0; i < task.blocks(); ++i) total += partials[level * task.blocks() + i];
    means[level] = count == 0 ? T(0) : static_cast<T>(total / static_cast<double>(count));
  }
  return {quantized, losses, residuals};
}

at::Tensor contiguous_mask(const std::optional<at::Tensor>& mask) {
  return mask ? mask->contiguous() : at::Tensor();
}

detail::ResidualCommitTensors residual_commit(const at::Tensor& x_, at::TensorList codebooks,
                                              const at::Tensor& indices_,
                                              const std::optional<at::Tensor>& mask_,
                                              std::string_view estimator, double gain) {
  detail::check_residual_commit(x_, codebooks, indices_, mask_, estimator, gain);
  const auto x = detail::contiguous_as(x_, detail::compute_dtype(x_));
  const auto indices = indices_.contiguous(), mask = contiguous_mask(mask_);
  return x.scalar_type() == at::kDouble ? commit<double>(x, codebooks, indices, mask)
                                        : commit<float>(x, codebooks, indices, mask);
}

template <typename T>
at::Tensor backward(const at::Tensor& grads, const at::Tensor& residuals, const bool* mask,
                    double gain, const at::Tensor& other) {
  auto result = at::empty(residuals.sizes().slice(1), residuals.options());
  const auto* const from = residuals.const_data_ptr<T>();
  const auto* const grad = grads.const_data_ptr<T>();
  auto* const total = result.mutable_data_ptr<T>();
  const int64_t levels = residuals.size(0), rows = result.size(0) * result.size(1),
                dim = result.size(2), values = rows * dim;
  const int64_t count = detail::count_tokens(mask, rows) * dim;
  std::vector<T> scales;
  for (int64_t level = 0; level < levels; ++level) {
    scales.push_back(kernels::commitment_scale(grad[level], count, mask != nullptr));
  }
  const T share = static_cast<T>(1 / gain);
  const auto* const added = other.defined() ? other.const_data_ptr<T>() : nullptr;
  at::parallel_for(0, rows, 16384 / (dim * levels + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* const sum = total + row * dim;
      const bool real = mask == nullptr || mask[row];
      for (int64_t level = levels - 1; level >= 0; --level) {
        const T* const residual = from + level * values + row * dim;
        const T own = scales[level];
        const bool first = level == levels - 1;
        for (int64_t d = 0; d < dim; ++d) {
          const T part = (real ? residual[d] : T(0)) * own;
          sum[d] = first ? part : part + sum[d];
        }
      }
      for (int64_t d = 0; d < dim; ++d) sum[d] *= share;
      if (added == nullptr) continue;
      for (int64_t d = 0; d < dim; ++d) sum[d] += added[row * dim + d];
    }
  });
  return result;
}

at::Tensor residual_commit_backward(const at::Tensor& grads_, const at::Tensor& residuals_,
                                    const std::optional<at::Tensor>& mask_, double gain,
                                    const std::optional<at::Tensor>& other_) {
  detail::check_residual_commit_backward(grads_, residuals_, mask_, gain, other_);
  const auto dtype = detail::compute_dtype(residuals_);
  const auto residuals = detail::contiguous_as(residuals_, dtype);
  const auto grads = detail::contiguous_as(grads_, dtype), mask = contiguous_mask(mask_);
  const auto other = other_ ? detail::contiguous_as(*other_, dtype) : at::Tensor();
  const auto* const real = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  const auto result = dtype == at::kDouble ? backward<double>(grads, residuals, real, gain, other)
                                           : backward<float>(grads, residuals, real, gain, other);
  return result.to(residuals_.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("residual_commit", residual_commit);
  m.impl("residual_commit_backward", residual_commit_backward);
}

}  // namespace torchvq
