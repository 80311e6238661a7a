#include "ops/residual_commitment_loss.h"

#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/residual_arguments.h"
#include "kernels/cpu/commitment_loss.h"
#include "ops/cpu/mean_squared_difference.h"

namespace torchvq {
namespace {

/// Contiguous tensors of the levels in the same dtype, and their rows.
struct ScoredLevels {
  ScoredLevels(at::TensorList tensors, at::ScalarType dtype) {
    for (const auto& tensor : tensors) held.push_back(detail::contiguous_as(tensor, dtype));
  }
  template <typename T>
  std::vector<const T*> rows() const {
    std::vector<const T*> found;
    for (const auto& tensor : held) found.push_back(tensor.const_data_ptr<T>());
    return found;
  }

  std::vector<at::Tensor> held;
};

at::Tensor contiguous_mask(const std::optional<at::Tensor>& mask) {
  return mask ? mask->contiguous() : at::Tensor();
}

const bool* data_of(const at::Tensor& mask) {
  return mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
}

at::Tensor residual_commitment_loss(const at::Tensor& x, at::TensorList inputs,
                                    at::TensorList codes, const std::optional<at::Tensor>& mask_) {
  detail::check_residual_commitment_loss(x, inputs, codes, mask_);
  const auto dtype = detail::residual_loss_dtype(inputs, codes);
  const auto mask = contiguous_mask(mask_);
  auto losses = at::empty({static_cast<int64_t>(inputs.size())}, x.options().dtype(at::kDouble));
  auto* means = losses.mutable_data_ptr<double>();
  for (size_t level = 0; level < inputs.size(); ++level) {
    means[level] =
        detail::mean_squared_difference(detail::contiguous_as(inputs[level], dtype),
                                        detail::contiguous_as(codes[level], dtype), data_of(mask));
  }
  return losses.to(dtype);
}

/// Factors of the differences of each level.
template <typename T>
std::vector<T> scales_of(const at::Tensor& grads_, int64_t count, bool masked) {
  const auto grads = grads_.contiguous();
  const auto* grad = grads.const_data_ptr<T>();
  std::vector<T> scales;
  for (int64_t level = 0; level < grads.numel(); ++level) {
    scales.push_back(kernels::commitment_scale(grad[level], count, masked));
  }
  return scales;
}

template <typename T>
at::Tensor backward(const at::Tensor& grads, const ScoredLevels& inputs, const ScoredLevels& codes,
                    const bool* mask) {
  const auto& shape = inputs.held[0];
  auto result = at::empty(shape.sizes(), shape.options());
  const auto from = inputs.rows<T>(), to = codes.rows<T>();
  auto* total = result.mutable_data_ptr<T>();
  const int64_t rows = shape.size(0) * shape.size(1), dim = shape.size(2);
  const auto levels = static_cast<int64_t>(from.size());
  const auto scale = scales_of<T>(grads, detail::count_tokens(mask, rows) * dim, mask != nullptr);
  at::parallel_for(0, rows, 16384 / (dim * levels + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* const sum = total + row * dim;
      const bool real = mask == nullptr || mask[row];
      for (int64_t level = levels - 1; level >= 0; --level) {
        const T* const a = from[level] + row * dim;
        const T* const b = to[level] + row * dim;
        const T own = scale[level];
        const bool first = level == levels - 1;
        for (int64_t d = 0; d < dim; ++d) {
          const T part = (real ? a[d] - b[d] : T(0)) * own;
          sum[d] = first ? part : part + sum[d];
        }
      }
    }
  });
  return result;
}

at::Tensor residual_commitment_loss_backward(const at::Tensor& grads, at::TensorList inputs,
                                             at::TensorList codes,
                                             const std::optional<at::Tensor>& mask_) {
  detail::check_residual_commitment_loss_backward(grads, inputs, codes, mask_);
  const auto dtype = grads.scalar_type();
  const auto mask = contiguous_mask(mask_);
  const ScoredLevels from(inputs, dtype), to(codes, dtype);
  return dtype == at::kDouble ? backward<double>(grads, from, to, data_of(mask))
                              : backward<float>(grads, from, to, data_of(mask));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("residual_commitment_loss", residual_commitment_loss);
  m.impl("residual_commitment_loss_backward", residual_commitment_loss_backward);
}

}  // namespace torchvq
