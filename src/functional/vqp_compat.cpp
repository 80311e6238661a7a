#include <torchvq/functional/vqp_compat.h>

#include <limits>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/cdist.h>
#include <ATen/ops/ones_like.h>
#include <torch/library.h>

#include <torchvq/functional/layout.h>
#include <torchvq/ops/sign_quantize.h>
#include <torchvq/ops/snapshot.h>

#include "detail/precision.h"
#include "detail/without_autocast.h"
#include "functional/token_codes.h"

namespace torchvq::functional {
namespace {

constexpr double kMinNorm = 1e-6;
constexpr double kMinProbability = 1e-5;

at::Tensor bounded_norm(const at::Tensor& rows) {
  return rows.norm(2, -1, /*keepdim=*/true).clamp_min(kMinNorm);
}

/// Entropy over the last axis.
at::Tensor clamped_entropy(const at::Tensor& probability) {
  return probability.mul(probability.clamp_min(kMinProbability).log()).sum(-1).neg();
}

at::Tensor row_dot(const at::Tensor& a, const at::Tensor& b) {
  return a.mul(b).sum(-1, /*keepdim=*/true);
}

}  // namespace

at::Tensor vqp_rotation_trick(const at::Tensor& x, const at::Tensor& codes) {
  const auto from = x.detach(), to = codes.detach();
  const auto from_norm = bounded_norm(from), to_norm = bounded_norm(to);
  const auto e = from.div(from_norm), q = to.div(to_norm);
  const auto sum = e.add(q);
  const auto r = sum.div(bounded_norm(sum));
  const auto rotated = x.sub(r.mul(row_dot(x, r)).mul(2)).add(q.mul(row_dot(x, e)).mul(2));
  return rotated.mul(to_norm.div(from_norm));
}

at::Tensor vqp_diversity_loss(const at::Tensor& inputs, const at::Tensor& codebook,
                              c10::SymInt batch, c10::SymInt tokens, int64_t heads, bool separate,
                              double temperature, const std::string& metric) {
  const detail::WithoutAutocast without_autocast;
  // A copy, because the step may overwrite the codebook before backward.
  const auto codes = ops::snapshot(codebook).to(inputs.scalar_type());
  const auto logits = codes.dim() == 4     ? token_scores(inputs, codes, metric)
                      : metric == "cosine" ? inputs.matmul(codes.transpose(1, 2))
                                           : at::cdist(inputs, codes).neg();
  const auto probability = logits.mul(temperature).softmax(-1);
  const auto each = merge_heads(probability, batch, tokens, heads, separate);
  // Quotients of sums instead of means, which are NaN without tokens.
  const auto count = each.sym_size(0) * each.sym_size(2);
  const auto mean = each.sum(at::IntArrayRef{0, 2}).div(count.max(1));
  const auto entropies = mean.mul(mean.clamp_min(kMinProbability).log()).sum(-1);
  return entropies.sum().div(entropies.sym_numel().max(1));
}

at::Tensor vqp_masked_commitment(const at::Tensor& tokens, const at::Tensor& codes,
                                 const at::Tensor& mask) {
  const auto row_mask = mask.unsqueeze(-1);
  const auto squares = codes.sub(tokens).square().masked_fill(row_mask.logical_not(), 0);
  return squares.sum().div(row_mask.sum().clamp_min(1).mul(tokens.sym_size(-1)));
}

std::pair<at::Tensor, at::Tensor> vqp_sign_entropy(const at::Tensor& latents, double sharpness,
                                                   const std::optional<at::Tensor>& mask,
                                                   bool masked) {
  const detail::WithoutAutocast without_autocast;
  const int64_t bits = latents.size(-1);
  const auto every = at::arange(int64_t{1} << bits, latents.options().dtype(at::kLong));
  const auto corners = ops::sign_decode(every, bits, 1.0).to(latents.scalar_type());
  const auto probability = latents.matmul(corners.t()).mul(sharpness / 2).softmax(-1);
  const auto weight = mask ? mask->to(latents.scalar_type()) : at::ones_like(latents.select(-1, 0));
  const auto tokens = weight.sum(-1, /*keepdim=*/true).clamp_min(1);
  const auto mean = [&](const at::Tensor& of_tokens) {
    return of_tokens.mul(weight).div(tokens).sum(-1).mean();
  };
  const auto own = mean(clamped_entropy(probability));
  if (masked) return {own, own};
  const auto average = probability.mul(weight.div(tokens).unsqueeze(-1)).sum(1);
  return {own, clamped_entropy(average).mean()};
}

at::Tensor vqp_latent_loss(const at::Tensor& z_, const at::Tensor& quantized_, double commitment,
                           double quantization, const std::optional<at::Tensor>& mask) {
  // Squares overflow in float16.
  const auto z = z_.to(detail::compute_dtype(z_));
  const auto quantized = quantized_.to(detail::compute_dtype(quantized_));
  const auto apart = [&](const at::Tensor& a, const at::Tensor& b) {
    if (mask) return vqp_masked_commitment(b, a, *mask);
    const auto squares = a.sub(b).square();
    return squares.sum().div(squares.sym_numel().max(1));
  };
  return apart(z.detach(), quantized)
      .mul(commitment)
      .add(apart(z, quantized.detach()).mul(quantization));
}

at::Tensor vqp_indices(const at::Tensor& indices, int64_t codebook_size) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  return codebook_size <= most ? indices.to(at::kInt) : indices;
}

at::Tensor vqp_levels(const at::Tensor& levels, const at::Tensor& indices) {
  switch (indices.scalar_type()) {
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
      return levels.to(at::kInt);
    default:
      return levels;
  }
}

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  using namespace torchvq::functional;
  m.def("vqp_rotation_trick(Tensor x, Tensor codes) -> Tensor", TORCH_FN(vqp_rotation_trick));
  m.def(
      "vqp_latent_loss(Tensor z, Tensor quantized, *, float commitment, float quantization, "
      "Tensor? mask=None) -> Tensor",
      TORCH_FN(vqp_latent_loss));
  m.def("vqp_indices(Tensor indices, int codebook_size) -> Tensor", TORCH_FN(vqp_indices));
}
