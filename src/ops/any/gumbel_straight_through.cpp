// Any device, CPU included. Forward is a lookup; backward scores one block of tokens at a time.
#include "ops/gumbel_straight_through.h"

#include <algorithm>
#include <array>

#include <ATen/TensorOperators.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>
#include <torchvq/ops/lookup_codes.h>

#include "detail/ordered_sum.h"
#include "detail/precision.h"
#include "ops/any/code_logits.h"
#include "ops/any/sum_by_index.h"

namespace torchvq {
namespace {

using detail::CodeLogits;

at::Tensor gumbel_straight_through(const at::Tensor& x, const at::Tensor& codebook,
                                   const at::Tensor& indices, double temperature,
                                   c10::string_view metric) {
  detail::check_gumbel_straight_through(x, codebook, indices, temperature, metric);
  return ops::lookup_codes(codebook, indices);
}

/// Gradient of the hard choice, (K, D): the gradient of each token is added to its code.
at::Tensor chosen_gradient(const at::Tensor& grad, const at::Tensor& indices, int64_t size) {
  const auto absent = indices.lt(0).unsqueeze(-1);
  return detail::sum_by_index(grad.masked_fill(absent, 0), indices.clamp_min(0), size);
}

/// Gradient of the soft choice, for one block of one head. Returns the gradient of the tokens.
at::Tensor soft_choice_backward(const CodeLogits& scores, const at::Tensor& codes,
                                const at::Tensor& x, const at::Tensor& grad, double temperature,
                                at::Tensor& grad_codes) {
  const auto part = scores.forward(x);
  const auto p = detail::divided(part.logits, temperature).softmax(-1);
  const auto slopes = at::mm(grad, codes.t());
  const auto mean = (p * slopes).sum(-1, /*keepdim=*/true);
  return scores.backward(part, detail::divided(p * (slopes - mean), temperature), grad_codes);
}

std::tuple<at::Tensor, at::Tensor> gumbel_straight_through_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& codebook,
    const at::Tensor& indices, double temperature, c10::string_view metric_name,
    std::array<bool, 2> wanted) {
  const auto metric = detail::check_gumbel_straight_through_backward(grad, x, codebook, indices,
                                                                     temperature, metric_name);
  const auto options = x.options().dtype(detail::sum_dtype(x));
  const auto room = [&](const at::Tensor& like, bool want) {
    return want ? at::zeros(like.sizes(), like.options()) : at::zeros({0}, like.options());
  };
  const auto grad_x = room(x, wanted[0]), grad_codebook = room(codebook, wanted[1]);
  const int64_t tokens = x.size(1), block = detail::tokens_per_block(codebook);
  for (int64_t h = 0; h < x.size(0); ++h) {
    const CodeLogits scores(codebook[h], metric);
    const auto codes = codebook[h].to(options.dtype());
    auto soft = wanted[1] ? at::zeros(codes.sizes(), options) : at::Tensor();
    for (int64_t from = 0; from < tokens && temperature > 0; from += block) {
      const int64_t size = std::min(block, tokens - from);
      const auto index = indices[h].narrow(0, from, size);
      const auto absent = index.lt(0).unsqueeze(-1);
      const auto upstream =
          grad[h].narrow(0, from, size).to(options.dtype()).masked_fill(absent, 0);
      const auto rows = x[h].narrow(0, from, size).masked_fill(absent, 0);
      const auto rows_grad = soft_choice_backward(scores, codes, rows, upstream, temperature, soft);
      if (wanted[0]) grad_x[h].narrow(0, from, size).copy_(rows_grad.masked_fill(absent, 0));
    }
    if (wanted[1]) {
      const auto chosen = chosen_gradient(grad[h], indices[h], codebook.size(1));
      grad_codebook[h].copy_(scores.codes_gradient(soft) + chosen);
    }
  }
  return {grad_x, grad_codebook};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("gumbel_straight_through", gumbel_straight_through);
  m.impl("gumbel_straight_through_backward", gumbel_straight_through_backward);
}

}  // namespace torchvq
