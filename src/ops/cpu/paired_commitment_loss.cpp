#include "ops/paired_commitment_loss.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/precision.h"
#include "detail/residual_arguments.h"
#include "ops/cpu/mean_squared_difference.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

/// Contiguous arguments in the dtype of the loss.
struct PairedRows {
  PairedRows(const at::Tensor& x_, const at::Tensor& codes_, const OptionalTensor& mask_)
      : dtype(detail::value_dtype(x_, codes_)),
        x(detail::contiguous_as(x_, dtype)),
        codes(detail::contiguous_as(codes_, dtype)),
        mask(mask_ ? mask_->contiguous() : at::Tensor()),
        real(mask.defined() ? mask.const_data_ptr<bool>() : nullptr) {}

  at::ScalarType dtype;
  at::Tensor x, codes, mask;
  const bool* real;
};

template <typename T>
at::Tensor weighted_distance(const PairedRows& rows, double to_x, double to_codes) {
  const auto distance =
      static_cast<T>(detail::mean_squared_difference(rows.x, rows.codes, rows.real));
  auto result = at::empty({}, rows.x.options());
  auto& total = *result.mutable_data_ptr<T>();
  total = 0;
  // With weight 0 a term is left out, so that a NaN in it does not spread.
  if (to_codes != 0) total += distance * static_cast<T>(to_codes);
  if (to_x != 0) total += distance * static_cast<T>(to_x);
  return result;
}

at::Tensor paired_commitment_loss(const at::Tensor& x, const at::Tensor& codes,
                                  const OptionalTensor& mask, double to_x, double to_codes) {
  detail::check_paired_commitment_loss(x, codes, mask, to_x, to_codes);
  const PairedRows rows(x, codes, mask);
  return rows.dtype == at::kDouble ? weighted_distance<double>(rows, to_x, to_codes)
                                   : weighted_distance<float>(rows, to_x, to_codes);
}

/// Factor of the differences for an upstream gradient. Halving the count is exact.
template <typename T>
T scale_of(T grad, int64_t values, bool masked) {
  return masked ? grad * 2 / static_cast<T>(std::max<int64_t>(values, 1))
                : grad / static_cast<T>(static_cast<double>(values) / 2);
}

/// Rows of one gradient, (x - codes) * scale.
template <typename T>
struct GradientRows {
  T scale;
  bool wanted;  ///< otherwise zeros
  T* to;
};

template <typename T>
void scale_differences(const T* __restrict x, const T* __restrict codes, int64_t count, T scale,
                       T* __restrict to) {
  for (int64_t i = 0; i < count; ++i) to[i] = (x[i] - codes[i]) * scale;
}

template <typename T>
void fill_rows(const PairedRows& rows, const GradientRows<T>& gradient, int64_t begin,
               int64_t end) {
  const int64_t dim = rows.x.size(2);
  if (!gradient.wanted) {
    std::fill(gradient.to + begin * dim, gradient.to + end * dim, T(0));
    return;
  }
  const auto *x = rows.x.const_data_ptr<T>(), *codes = rows.codes.const_data_ptr<T>();
  const auto fill = [&](int64_t row, int64_t count) {
    const int64_t at = row * dim;
    scale_differences(x + at, codes + at, count * dim, gradient.scale, gradient.to + at);
  };
  if (rows.real == nullptr) {
    fill(begin, end - begin);
    return;
  }
  for (int64_t row = begin; row < end; ++row) {
    if (rows.real[row]) {
      fill(row, 1);
    } else {
      std::fill_n(gradient.to + row * dim, dim, T(0) * gradient.scale);
    }
  }
}

template <typename T>
void fill_gradients(T grad, const PairedRows& rows, double to_x, double to_codes, at::Tensor& of_x,
                    at::Tensor& of_codes) {
  const int64_t count = rows.x.size(0) * rows.x.size(1), dim = rows.x.size(2);
  const int64_t values = detail::count_tokens(rows.real, count) * dim;
  const bool masked = rows.real != nullptr;
  const GradientRows<T> x{scale_of(grad * static_cast<T>(to_x), values, masked), to_x != 0,
                          of_x.mutable_data_ptr<T>()};
  const GradientRows<T> codes{-scale_of(grad * static_cast<T>(to_codes), values, masked),
                              to_codes != 0, of_codes.mutable_data_ptr<T>()};
  at::parallel_for(0, count, 16384 / (dim + 1) + 1, [&](int64_t begin, int64_t end) {
    fill_rows(rows, x, begin, end);
    fill_rows(rows, codes, begin, end);
  });
}

std::tuple<at::Tensor, at::Tensor> paired_commitment_loss_backward(const at::Tensor& grad,
                                                                   const at::Tensor& x,
                                                                   const at::Tensor& codes,
                                                                   const OptionalTensor& mask,
                                                                   double to_x, double to_codes) {
  detail::check_paired_commitment_loss_backward(grad, x, codes, mask, to_x, to_codes);
  const PairedRows rows(x, codes, mask);
  auto of_x = at::empty(rows.x.sizes(), rows.x.options());
  auto of_codes = at::empty(rows.x.sizes(), rows.x.options());
  if (rows.dtype == at::kDouble) {
    fill_gradients(*grad.const_data_ptr<double>(), rows, to_x, to_codes, of_x, of_codes);
  } else {
    fill_gradients(*grad.const_data_ptr<float>(), rows, to_x, to_codes, of_x, of_codes);
  }
  return {of_x.to(x.scalar_type()), of_codes.to(codes.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("paired_commitment_loss", paired_commitment_loss);
  m.impl("paired_commitment_loss_backward", paired_commitment_loss_backward);
}

}  // namespace torchvq
