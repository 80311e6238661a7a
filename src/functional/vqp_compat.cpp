#include <torchvq/functional/vqp_compat.h>

#include <ATen/ops/cdist.h>
#include <torch/library.h>

#include <torchvq/functional/layout.h>
#include <torchvq/ops/snapshot.h>

namespace torchvq::functional {
namespace {

constexpr double kMinNorm = 1e-6;
constexpr double kMinProbability = 1e-5;

at::Tensor bounded_norm(const at::Tensor& rows) {
  return rows.norm(2, -1, /*keepdim=*/true).clamp_min(kMinNorm);
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
  // A copy, because the step may overwrite the codebook before backward.
  const auto codes = ops::snapshot(codebook).to(inputs.scalar_type());
  const auto logits =
      metric == "cosine" ? inputs.matmul(codes.transpose(1, 2)) : at::cdist(inputs, codes).neg();
  const auto probability = logits.mul(temperature).softmax(-1);
  const auto mean =
      merge_heads(probability, batch, tokens, heads, separate).mean(at::IntArrayRef{0, 2});
  return mean.mul(mean.clamp_min(kMinProbability).log()).sum(-1).mean();
}

at::Tensor vqp_masked_commitment(const at::Tensor& tokens, const at::Tensor& codes,
                                 const at::Tensor& mask) {
  const auto real = mask.unsqueeze(-1);
  const auto squares = codes.sub(tokens).square().masked_fill(real.logical_not(), 0);
  return squares.sum().div(real.sum().mul(tokens.sym_size(2)));
}

}  // namespace torchvq::functional

namespace {

at::Tensor vqp_diversity_loss_op(const at::Tensor& inputs, const at::Tensor& codebook,
                                 c10::SymInt batch, c10::SymInt tokens, int64_t heads,
                                 bool separate, double temperature, std::string_view metric) {
  return torchvq::functional::vqp_diversity_loss(inputs, codebook, std::move(batch),
                                                 std::move(tokens), heads, separate, temperature,
                                                 std::string(metric));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  using namespace torchvq::functional;
  m.def("vqp_rotation_trick(Tensor x, Tensor codes) -> Tensor", TORCH_FN(vqp_rotation_trick));
  m.def(
      "vqp_diversity_loss(Tensor inputs, Tensor codebook, *, SymInt batch, SymInt tokens, int "
      "heads, bool separate, "
      "float temperature, str metric) -> Tensor",
      vqp_diversity_loss_op);
  m.def("vqp_masked_commitment(Tensor tokens, Tensor codes, Tensor mask) -> Tensor",
        TORCH_FN(vqp_masked_commitment));
}
