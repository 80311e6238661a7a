#include "ops/binary_codes.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <torchvq/ops/binary_codes.h>

#include "detail/differentiable.h"
#include "detail/no_gradient.h"
#include "detail/once_differentiable.h"
#include "detail/op_handle.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<at::Tensor>;

struct BinaryOneHot : torch::autograd::Function<BinaryOneHot> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits,
                            const at::Tensor& indices, double temperature) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({logits, indices.clone()});  // users may write to theirs
    ctx->saved_data["temperature"] = temperature;
    return ops::binary_one_hot(logits, indices, temperature);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    detail::check_once_differentiable("binary_one_hot");
    using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, double);
    static auto op = detail::op_handle<Signature>("torchvq::binary_one_hot_backward");
    const auto saved = ctx->get_saved_variables();
    const auto temperature = ctx->saved_data["temperature"].toDouble();
    return {op.call(grads[0], saved[0], saved[1], temperature), at::Tensor(), at::Tensor()};
  }
};

at::Tensor binary_one_hot(const at::Tensor& logits, const at::Tensor& indices, double temperature) {
  return detail::differentiable<BinaryOneHot>(logits, indices, temperature);
}

struct BinaryKlLoss : torch::autograd::Function<BinaryKlLoss> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& logits, double threshold,
                            const OptionalTensor& mask, bool reduce) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({logits, mask.value_or(at::Tensor())});
    ctx->saved_data["threshold"] = threshold;
    ctx->saved_data["reduce"] = reduce;
    return ops::binary_kl_loss(logits, threshold, mask, reduce);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    detail::check_once_differentiable("binary_kl_loss");
    const auto saved = ctx->get_saved_variables();
    const auto &logits = saved[0], &mask = saved[1];
    const auto threshold = ctx->saved_data["threshold"].toDouble();
    const auto given_mask = mask.defined() ? OptionalTensor(mask) : std::nullopt;
    using Signature =
        at::Tensor(const at::Tensor&, const at::Tensor&, double, const OptionalTensor&, bool);
    static auto op = detail::op_handle<Signature>("torchvq::binary_kl_loss_backward");
    return {op.call(grads[0], logits, threshold, given_mask, ctx->saved_data["reduce"].toBool()),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor binary_kl_loss(const at::Tensor& logits, double threshold, const OptionalTensor& mask,
                          bool reduce) {
  return detail::differentiable<BinaryKlLoss>(logits, threshold, mask, reduce);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("binary_sample",
         torch::CppFunction::makeFromBoxedFunction<&detail::run_without_gradient>());
  m.impl("binary_one_hot", binary_one_hot);
  m.impl("binary_kl_loss", binary_kl_loss);
}

}  // namespace torchvq
