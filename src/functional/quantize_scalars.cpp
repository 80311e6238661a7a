#include <torchvq/functional/quantize_scalars.h>

#include <tuple>
#include <vector>

#include <torch/library.h>

#include <torchvq/functional/rotate_features.h>
#include <torchvq/ops/scalar_decode.h>
#include <torchvq/ops/scalar_noise.h>
#include <torchvq/ops/scalar_quantize.h>

#include "detail/checks.h"

namespace torchvq::functional {
namespace {

/// (*, C * D) to (*, C, D).
at::Tensor by_codebook(const at::Tensor& tokens, int64_t codebooks, int64_t dim) {
  TORCH_CHECK_VALUE(codebooks >= 1 && tokens.dim() >= 1 && tokens.sym_size(-1) == codebooks * dim,
                    "quantize_scalars: expected tokens to have ", codebooks, " times ", dim,
                    " features, one per codebook and number of levels, but got shape ",
                    tokens.sym_sizes());
  return tokens.unflatten(-1, {codebooks, dim});
}

at::Tensor add_noise(const at::Tensor& codes, at::IntArrayRef levels,
                     const QuantizeScalarsOptions& options) {
  if (!options.vqp_noise()) {
    return ops::scalar_noise(codes, levels, *options.rng(), options.noise(), options.stream());
  }
  // Half a step of three levels is 1/2.
  const std::vector<int64_t> threes(levels.size(), 3);
  return ops::scalar_noise(codes, threes, *options.rng(), 0.5, options.stream());
}

}  // namespace

QuantizeScalarsOutput quantize_scalars(const at::Tensor& tokens, at::IntArrayRef levels,
                                       const QuantizeScalarsOptions& options) {
  // Stacks give float32 or float64; a half-precision quotient would round.
  const auto& scale = options.scale();
  const auto given = scale ? tokens.div(scale->to(tokens.scalar_type())) : tokens;
  auto features = by_codebook(given, options.codebooks(), static_cast<int64_t>(levels.size()));
  const auto& rotation = options.rotation();
  if (rotation) features = rotate_features(features, *rotation);
  auto [codes, indices] = ops::scalar_quantize(features, levels, options.bound());
  if (options.rng() && options.noise() > 0) {
    codes = add_noise(codes, levels, options);
  }
  if (rotation) codes = rotate_features(codes, *rotation, /*inverse=*/true);
  codes = codes.flatten(-2);
  if (scale) codes = codes.mul(scale->to(codes.scalar_type()));
  if (options.mask()) {
    const auto absent = options.mask()->logical_not().unsqueeze(-1);
    codes = codes.masked_fill(absent, 0);
    indices = indices.masked_fill(absent, -1);
  }
  return {codes, indices};
}

at::Tensor soft_clamp(const at::Tensor& x, const at::Tensor& limit) {
  detail::check_floating("soft_clamp", "x", x);
  detail::check_floating("soft_clamp", "limit", limit);
  const auto bound = limit.to(x.scalar_type());
  // Infinity would become a limit; a token that is not finite stays visible.
  const auto fixed = x.detach();
  return x.div(bound).tanh().mul(bound).add(fixed.sub(fixed));
}

at::Tensor decode_scalars(const at::Tensor& indices, at::IntArrayRef levels, bool symmetric,
                          const std::optional<at::Tensor>& rotation,
                          const std::optional<at::Tensor>& scale, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(indices.dim() >= 1,
                    "decode_scalars: expected indices to have a last axis of codebooks, but got "
                    "shape ",
                    indices.sym_sizes());
  auto codes = ops::scalar_decode(indices, levels, symmetric, dtype);
  if (rotation) codes = rotate_features(codes, *rotation, /*inverse=*/true);
  codes = codes.flatten(-2);
  return scale ? codes.mul(scale->to(dtype)) : codes;
}

namespace {

std::tuple<at::Tensor, at::Tensor> quantize_scalars_op(
    const at::Tensor& tokens, at::IntArrayRef levels, int64_t codebooks, std::string_view bound,
    const std::optional<at::Tensor>& rotation, const std::optional<at::Tensor>& scale,
    const std::optional<at::Tensor>& rng, double noise, int64_t stream,
    const std::optional<at::Tensor>& mask, bool vqp_noise) {
  auto output = quantize_scalars(tokens, levels,
                                 QuantizeScalarsOptions()
                                     .codebooks(codebooks)
                                     .bound(std::string(bound))
                                     .rotation(rotation)
                                     .scale(scale)
                                     .rng(rng)
                                     .noise(noise)
                                     .stream(stream)
                                     .mask(mask)
                                     .vqp_noise(vqp_noise));
  return {output.codes, output.indices};
}

}  // namespace

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "quantize_scalars(Tensor tokens, int[] levels, *, int codebooks=1, str bound='tanh', "
      "Tensor? rotation=None, Tensor? scale=None, Tensor? rng=None, float noise=0.0, int stream=0, "
      "Tensor? mask=None, bool vqp_noise=False) -> (Tensor codes, Tensor indices)",
      torchvq::functional::quantize_scalars_op);
  m.def("soft_clamp(Tensor x, Tensor limit) -> Tensor", TORCH_FN(torchvq::functional::soft_clamp));
  m.def(
      "decode_scalars(Tensor indices, int[] levels, bool symmetric=False, "
      "Tensor? rotation=None, Tensor? scale=None, ScalarType dtype=float) -> Tensor",
      TORCH_FN(torchvq::functional::decode_scalars));
}
