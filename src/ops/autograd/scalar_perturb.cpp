#include "ops/scalar_perturb.h"

#include <string>
#include <tuple>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/ops/scalar_perturb.h>

#include "detail/differentiable.h"
#include "detail/no_gradient.h"
#include "detail/once_differentiable.h"
#include "detail/op_handle.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

struct ScalarPerturb : torch::autograd::Function<ScalarPerturb> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, at::IntArrayRef levels,
                               const OptionalTensor& rng, double quantize_rate,
                               const ops::PerturbOptions& options, const OptionalTensor& mask) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto found = ops::scalar_perturb(x, levels, rng, quantize_rate, options, mask);
    // A copy, because users may write to the indices they receive.
    ctx->save_for_backward({x, found.indices.clone()});
    ctx->saved_data["cdf"] = options.cdf;
    ctx->saved_data["form"] = options.form;
    ctx->mark_non_differentiable({found.level_indices, found.indices, found.acceptance});
    ctx->set_materialize_grads(false);
    return {found.codes, found.level_indices, found.indices, found.acceptance};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    detail::check_once_differentiable("scalar_perturb");
    using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                 std::string_view, std::string_view);
    static auto op = detail::op_handle<Signature>("torchvq::scalar_perturb_backward");
    const auto saved = ctx->get_saved_variables();
    const auto none = at::Tensor();
    if (!grads[0].defined()) return {none, none, none, none, none, none};
    return {op.call(grads[0], saved[0], saved[1], ctx->saved_data["cdf"].toStringRef(),
                    ctx->saved_data["form"].toStringRef()),
            none,
            none,
            none,
            none,
            none};
  }
};

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> scalar_perturb(
    const at::Tensor& x, at::IntArrayRef levels, const OptionalTensor& rng, double quantize_rate,
    std::string_view cdf, std::string_view form, double eps, const OptionalTensor& mask) {
  const ops::PerturbOptions options{std::string(cdf), std::string(form), eps};
  const auto found =
      detail::differentiable<ScalarPerturb>(x, levels, rng, quantize_rate, options, mask);
  return {found[0], found[1], found[2], found[3]};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("scalar_perturb", scalar_perturb);
  m.impl("scalar_act_levels",
         torch::CppFunction::makeFromBoxedFunction<&detail::run_without_gradient>());
}

}  // namespace torchvq
