#include <torchvq/functional/losses.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <torchvq/ops/paired_commitment_loss.h>

#include "detail/checks.h"

namespace torchvq::functional {
namespace {

/// Whether a tensor is traced. Tracing would turn a leaf that requires grad
/// into an input of the graph.
bool is_traced(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->is_python_dispatch() ||
         tensor.key_set().has(c10::DispatchKey::Functionalize);
}

at::Tensor with_graph(const at::Tensor& loss) {
  if (loss.requires_grad() || !at::GradMode::is_enabled() || is_traced(loss)) {
    return loss;
  }
  return loss.add(at::zeros({}, loss.options()).requires_grad_());
}

}  // namespace

at::Tensor candidate_commitment_loss(const at::Tensor& inputs, const at::Tensor& codes,
                                     const std::optional<at::Tensor>& mask) {
  constexpr auto op = "candidate_commitment_loss";
  detail::check_defined(op, "inputs", inputs);
  detail::check_defined(op, "codes", codes);
  if (mask) detail::check_defined(op, "mask", *mask);
  const auto loss = inputs.unsqueeze(2).sub(codes).square().mean(-1);
  return mask ? loss.masked_fill(mask->logical_not().unsqueeze(-1), 0) : loss;
}

at::Tensor weighted_loss(at::TensorList terms, at::ArrayRef<double> weights, bool training) {
  TORCH_CHECK_VALUE(terms.size() == weights.size() && !terms.empty(),
                    "weighted_loss: expected one weight per term, but got ", terms.size(),
                    " terms and ", weights.size(), " weights");
  for (const auto& term : terms) detail::check_defined("weighted_loss", "terms", term);
  at::Tensor total;
  bool is_a_term = false;
  for (size_t i = 0; i < terms.size(); ++i) {
    if (weights[i] == 0) continue;
    const auto weighted = weights[i] == 1 ? terms[i] : terms[i].mul(weights[i]);
    // A regularisation term in float64 does not widen the loss of float32 tokens.
    const auto term = weighted.to(terms[0].scalar_type());
    is_a_term = !total.defined() && term.is_same(terms[i]);
    total = total.defined() ? total.add(term) : term;
  }
  if (!total.defined()) {
    total = at::zeros({}, terms[0].options());
  } else if (is_a_term) {
    total = total.clone();  // a copy, so that writing to the loss leaves the term alone
  }
  return training ? with_graph(total) : total;
}

at::Tensor paired_loss(const at::Tensor& inputs, const at::Tensor& codes,
                       const std::optional<at::Tensor>& mask, double to_inputs, double to_codes,
                       bool training) {
  // In evaluation the loss has no gradient.
  if (!training) {
    return ops::paired_commitment_loss(inputs.detach(), codes.detach(), mask, to_inputs, to_codes);
  }
  return with_graph(ops::paired_commitment_loss(inputs, codes, mask, to_inputs, to_codes));
}

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  using namespace torchvq::functional;
  m.def(
      "paired_loss(Tensor inputs, Tensor codes, *, Tensor? mask=None, float to_inputs, "
      "float to_codes, bool training) -> Tensor",
      TORCH_FN(paired_loss));
  m.def("weighted_loss(Tensor[] terms, float[] weights, bool training) -> Tensor",
        TORCH_FN(weighted_loss));
}
