#include "ops/directional_reparam.h"

#include <cmath>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/precision.h"
#include "kernels/cpu/directional_reparam.h"

namespace torchvq {
namespace {

/// Calls body(offset of the row) for every token, in parallel.
template <typename Body>
void for_each_row(const at::Tensor& x, const Body& body) {
  const int64_t rows = x.size(0) * x.size(1), dim = x.size(2);
  at::parallel_for(0, rows, 16384 / (dim + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row * dim);
  });
}

template <typename T>
at::Tensor forward_rows(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& noise,
                        double deviation) {
  auto result = at::empty(x.sizes(), x.options());
  const auto* from = x.const_data_ptr<T>();
  const auto* to = codes.const_data_ptr<T>();
  const auto* n = noise.const_data_ptr<T>();
  auto* y = result.mutable_data_ptr<T>();
  const int64_t dim = x.size(2);
  for_each_row(x, [&](int64_t at) {
    kernels::directional_reparam_row(from + at, to + at, n + at, deviation, y + at, dim);
  });
  return result;
}

template <typename T>
std::tuple<at::Tensor, at::Tensor> backward_rows(const at::Tensor& grad, const at::Tensor& x,
                                                 const at::Tensor& codes, const at::Tensor& noise,
                                                 double deviation) {
  auto grad_x = at::empty(x.sizes(), x.options()), grad_codes = at::empty(x.sizes(), x.options());
  const auto* g = grad.const_data_ptr<T>();
  const auto* from = x.const_data_ptr<T>();
  const auto* to = codes.const_data_ptr<T>();
  const auto* n = noise.const_data_ptr<T>();
  auto* gx = grad_x.mutable_data_ptr<T>();
  auto* gc = grad_codes.mutable_data_ptr<T>();
  const int64_t dim = x.size(2);
  for_each_row(x, [&](int64_t at) {
    kernels::directional_reparam_backward_row(g + at, from + at, to + at, n + at, deviation,
                                              gx + at, gc + at, dim);
  });
  return {grad_x, grad_codes};
}

at::Tensor directional_reparam(const at::Tensor& x, const at::Tensor& codes,
                               const at::Tensor& noise, double variance) {
  detail::check_directional_reparam(x, codes, noise, variance);
  const auto dtype = detail::value_dtype(x, codes);
  const auto rows = [&](const at::Tensor& tensor) { return tensor.to(dtype).contiguous(); };
  const double deviation = std::sqrt(variance);
  const auto result = dtype == at::kDouble
                          ? forward_rows<double>(rows(x), rows(codes), rows(noise), deviation)
                          : forward_rows<float>(rows(x), rows(codes), rows(noise), deviation);
  return result.to(x.scalar_type());
}

std::tuple<at::Tensor, at::Tensor> directional_reparam_backward(const at::Tensor& grad,
                                                                const at::Tensor& x,
                                                                const at::Tensor& codes,
                                                                const at::Tensor& noise,
                                                                double variance) {
  detail::check_directional_reparam_backward(grad, x, codes, noise, variance);
  const auto dtype = detail::value_dtype(x, codes);
  const auto rows = [&](const at::Tensor& tensor) { return tensor.to(dtype).contiguous(); };
  const double deviation = std::sqrt(variance);
  const auto [grad_x, grad_codes] =
      dtype == at::kDouble
          ? backward_rows<double>(rows(grad), rows(x), rows(codes), rows(noise), deviation)
          : backward_rows<float>(rows(grad), rows(x), rows(codes), rows(noise), deviation);
  return {grad_x.to(x.scalar_type()), grad_codes.to(codes.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("directional_reparam", directional_reparam);
  m.impl("directional_reparam_backward", directional_reparam_backward);
}

}  // namespace torchvq
