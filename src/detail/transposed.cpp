#include "detail/transposed.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>

#include "detail/readable.h"
#include "kernels/cpu/transpose.h"

namespace torchvq::detail {
namespace {

// Less is copied sooner than a kernel is reached.
constexpr int64_t kLeastElements = 4096, kLeastSide = 4;
constexpr int64_t kTransposedPerTask = 65536;

bool turns(const at::Tensor& x) {
  const auto dtype = x.scalar_type();
  return x.dim() == 3 && (dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16) &&
         is_readable(x) && x.is_contiguous() && x.numel() >= kLeastElements &&
         std::min(x.size(1), x.size(2)) >= kLeastSide;
}

template <typename T>
void copy_transposed(kernels::Transpose<T> kernel, const at::Tensor& x, const at::Tensor& to) {
  const int64_t rows = x.size(1), columns = x.size(2);
  const auto* from = static_cast<const T*>(x.const_data_ptr());
  auto* result = static_cast<T*>(to.mutable_data_ptr());
  // A task has columns of one item.
  constexpr int64_t strip = kernels::kTransposedStrip;
  const int64_t width = std::max<int64_t>(kTransposedPerTask / rows / strip, 1) * strip;
  const int64_t tasks = (columns + width - 1) / width;
  at::parallel_for(0, x.size(0) * tasks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t item = task / tasks * rows * columns, first = task % tasks * width;
      kernel(from + item, rows, columns, first, std::min(first + width, columns), result + item);
    }
  });
}

at::Tensor turned(const at::Tensor& x) {
  auto result = at::empty({x.size(0), x.size(2), x.size(1)}, x.options());
  const auto kernel = kernels::transpose_kernel(kernels::cpu_level());
  if (x.scalar_type() == at::kFloat) {
    copy_transposed(kernel.words, x, result);
  } else {
    copy_transposed(kernel.halves, x, result);
  }
  return result;
}

struct Transposed : torch::autograd::Function<Transposed> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x) {
    // Without a gradient of its result x has none either, as through a view.
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView guard;
    return turned(x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*ctx*/,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0].defined() ? transposed(grads[0]) : at::Tensor()};
  }
};

}  // namespace

at::Tensor transposed(const at::Tensor& x) {
  // Tangents of forward mode pass through a view.
  if (!turns(x) || x._fw_grad(/*level=*/0).defined()) return x.transpose(1, 2);
  return needs_gradient(x) ? Transposed::apply(x) : turned(x);
}

at::Tensor contiguous_rows(const at::Tensor& x) {
  if (x.dim() != 3 || x.is_contiguous()) return x.contiguous();
  return transposed(x.transpose(1, 2)).contiguous();
}

}  // namespace torchvq::detail
