#include <algorithm>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torchvq/functional/quantize_scalars.h>

#include "detail/checks.h"
#include "detail/readable.h"

namespace torchvq::functional {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kElementsPerTask = 16384, kElementsTogether = 128;

/// limit * tanh(x / limit) as operators of torch. tanh would map infinity to the limit; adding
/// x - x turns values that are not finite into NaN.
at::Tensor by_operators(const at::Tensor& x, const at::Tensor& limit) {
  const auto fixed = x.detach();
  return x.div(limit).tanh().mul(limit).add(fixed.sub(fixed));
}

/// The elements between the rows of x, if these are contiguous, in order and equally far apart, as
/// groups of features of a larger tensor are; 0 if not.
int64_t row_step(const at::Tensor& x) {
  const int64_t features = x.size(-1);
  if (features > 1 && x.stride(-1) != 1) return 0;
  int64_t step = 0, next = 0;
  for (int64_t axis = x.dim() - 2; axis >= 0; --axis) {
    const int64_t size = x.size(axis), stride = x.stride(axis);
    if (size == 1) continue;
    if (step == 0) step = stride;
    if (stride < features || (next > 0 && stride != next)) return 0;
    next = stride * size;
  }
  return step == 0 ? features : step;
}

/// Whether the passes below give the result: they have the bits of `by_operators`, and one node in
/// a graph and two tensors in memory where that has four and five.
bool in_few_passes(const at::Tensor& x, const at::Tensor& limit) {
  const auto dtype = x.scalar_type();
  return (dtype == at::kFloat || dtype == at::kDouble) && detail::may_shorten_graph(x) &&
         detail::is_plain(limit) && limit.dim() <= 1 && x.dim() >= 1 && x.numel() > 0 &&
         (limit.numel() == 1 || limit.numel() == x.size(-1)) && row_step(x) > 0 &&
         !x._fw_grad(/*level=*/0).defined();
}

/// Calls function(element of x, element of the result, limit of its feature) for every element.
template <typename T, typename Function>
void for_each(const at::Tensor& x, const at::Tensor& limit, Function function) {
  const int64_t features = x.size(-1), rows = row_step(x), every = x.numel() / features;
  // Rows that follow each other are one, long enough for the vectors of a compiler.
  const int64_t together = rows == features ? std::min(1 + kElementsTogether / features, every) : 1;
  const auto* own = limit.const_data_ptr<T>();
  std::vector<T> limits(static_cast<size_t>(together * features));
  for (size_t i = 0; i < limits.size(); ++i) {
    limits[i] = own[limit.numel() == 1 ? 0 : static_cast<int64_t>(i) % features];
  }
  at::parallel_for(0, every, 1 + kElementsPerTask / features, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row += together) {
      const int64_t from = row * rows, to = row * features;
      const int64_t count = std::min(together, end - row) * features;
      for (int64_t i = 0; i < count; ++i) function(from + i, to + i, limits[i]);
    }
  });
}

at::Tensor empty_result(const at::Tensor& x) { return at::empty(x.sizes(), x.options()); }

/// tanh(x / limit).
at::Tensor bounded(const at::Tensor& x, const at::Tensor& limit) {
  auto result = empty_result(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "soft_clamp", [&] {
    const auto* source = x.const_data_ptr<scalar_t>();
    auto* target = result.mutable_data_ptr<scalar_t>();
    for_each<scalar_t>(
        x, limit, [&](int64_t from, int64_t to, scalar_t own) { target[to] = source[from] / own; });
  });
  return result.tanh_();
}

/// The result, from `bounded`.
at::Tensor clamped(const at::Tensor& x, const at::Tensor& limit, const at::Tensor& bounded) {
  auto result = empty_result(x);
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "soft_clamp", [&] {
    const auto *source = x.const_data_ptr<scalar_t>(), *within = bounded.const_data_ptr<scalar_t>();
    auto* target = result.mutable_data_ptr<scalar_t>();
    for_each<scalar_t>(x, limit, [&](int64_t from, int64_t to, scalar_t own) {
      target[to] = within[to] * own + (source[from] - source[from]);
    });
  });
  return result;
}

/// The gradient of x, from that of the result.
at::Tensor gradient(const at::Tensor& grad, const at::Tensor& limit, const at::Tensor& bounded) {
  if (at::GradMode::is_enabled() || !in_few_passes(grad, limit)) {
    return at::tanh_backward(grad.mul(limit), bounded).div(limit);
  }
  auto scaled = empty_result(grad);
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "soft_clamp_backward", [&] {
    const auto* source = grad.const_data_ptr<scalar_t>();
    auto* target = scaled.mutable_data_ptr<scalar_t>();
    for_each<scalar_t>(grad, limit, [&](int64_t from, int64_t to, scalar_t own) {
      target[to] = source[from] * own;
    });
  });
  auto result = at::tanh_backward(scaled, bounded);
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "soft_clamp_backward", [&] {
    auto* target = result.mutable_data_ptr<scalar_t>();
    for_each<scalar_t>(result, limit,
                       [&](int64_t /*from*/, int64_t to, scalar_t own) { target[to] /= own; });
  });
  return result;
}

struct SoftClamp : torch::autograd::Function<SoftClamp> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& limit) {
    ctx->set_materialize_grads(false);
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto within = bounded(x, limit);
    ctx->save_for_backward({x, limit, within});
    return clamped(x, limit, within);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor none;
    if (!grads[0].defined()) return {none, none};
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &limit = saved[1];
    // A second derivative needs the function of x.
    const auto within = at::GradMode::is_enabled() ? x.div(limit).tanh() : saved[2];
    return {gradient(grads[0], limit, within), none};
  }
};

}  // namespace

at::Tensor soft_clamp(const at::Tensor& x, const at::Tensor& limit_) {
  detail::check_floating("soft_clamp", "x", x);
  detail::check_floating("soft_clamp", "limit", limit_);
  const auto limit = limit_.to(x.scalar_type());
  if (!in_few_passes(x, limit)) return by_operators(x, limit);
  if (detail::needs_gradient(x)) return SoftClamp::apply(x, limit);
  return clamped(x, limit, bounded(x, limit));
}

}  // namespace torchvq::functional
