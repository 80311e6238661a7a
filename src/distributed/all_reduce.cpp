#include <torchvq/distributed/all_reduce.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/checks.h"
#include "detail/differentiable.h"
#include "detail/no_gradient.h"
#include "detail/op_handle.h"
#include "distributed/group.h"

namespace torchvq::distributed {
namespace {

using AllReduceSignature = at::Tensor(const at::Tensor&, std::string_view, std::string_view);

at::Tensor sum(const at::Tensor& x, std::string_view group_name, std::string_view label,
               const char* what) {
  const Group group(group_name, {std::string(label), {}});
  auto result = x.detach().clone(at::MemoryFormat::Contiguous);
  group.sum_(result, what);
  return result;
}

at::Tensor statistics_any(const at::Tensor& x, std::string_view group_name,
                          std::string_view label) {
  return sum(x, group_name, label, "a statistic");
}

at::Tensor differentiable_any(const at::Tensor& x, std::string_view group_name,
                              std::string_view label) {
  detail::check_floating("all_reduce_differentiable", "x", x);
  return sum(x, group_name, label, "a sum or its gradient");
}

at::Tensor statistics_meta(const at::Tensor& x, std::string_view /*group_name*/,
                           std::string_view /*label*/) {
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

at::Tensor differentiable_meta(const at::Tensor& x, std::string_view group_name,
                               std::string_view label) {
  detail::check_floating("all_reduce_differentiable", "x", x);
  return statistics_meta(x, group_name, label);
}

at::Tensor call_differentiable(const at::Tensor& x, std::string_view group_name,
                               std::string_view label) {
  static auto op = detail::op_handle<AllReduceSignature>("torchvq::all_reduce_differentiable");
  return op.call(x, group_name, label);
}

/// Every rank reads the sum over ranks, so the gradient of a summand is the sum over
/// ranks of their gradients.
class SumOverRanks : public torch::autograd::Function<SumOverRanks> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const std::string& group_name, const std::string& label) {
    context->saved_data["group_name"] = group_name;
    context->saved_data["label"] = label;
    const at::AutoDispatchBelowADInplaceOrView guard;
    return call_differentiable(x, group_name, label);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto& saved = context->saved_data;
    return {call_differentiable(gradients[0], saved.at("group_name").toStringRef(),
                                saved.at("label").toStringRef()),
            at::Tensor(), at::Tensor()};
  }
};

at::Tensor differentiable_autograd(const at::Tensor& x, std::string_view group_name,
                                   std::string_view label) {
  return detail::differentiable<SumOverRanks>(x, std::string(group_name), std::string(label));
}

}  // namespace

at::Tensor all_reduce_statistics(const at::Tensor& x, const SyncOptions& options) {
  static auto op = detail::op_handle<AllReduceSignature>("torchvq::all_reduce_statistics");
  return op.call(x, options.group_name, options.label);
}

at::Tensor all_reduce_differentiable(const at::Tensor& x, const SyncOptions& options) {
  return call_differentiable(x, options.group_name, options.label);
}

}  // namespace torchvq::distributed

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("all_reduce_statistics(Tensor x, *, str group_name='', str label='quantizer') -> Tensor");
  m.def(
      "all_reduce_differentiable(Tensor x, *, str group_name='', str label='quantizer') -> Tensor");
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("all_reduce_statistics", torchvq::distributed::statistics_any);
  m.impl("all_reduce_differentiable", torchvq::distributed::differentiable_any);
}

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("all_reduce_statistics", torchvq::distributed::statistics_meta);
  m.impl("all_reduce_differentiable", torchvq::distributed::differentiable_meta);
}

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("all_reduce_statistics",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
  m.impl("all_reduce_differentiable", torchvq::distributed::differentiable_autograd);
}
