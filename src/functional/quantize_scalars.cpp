#include <torchvq/functional/quantize_scalars.h>

#include <tuple>
#include <vector>

#include <torch/library.h>

#include <torchvq/functional/layout.h>
#include <torchvq/functional/rotate_features.h>
#include <torchvq/ops/scalar_decode.h>
#include <torchvq/ops/scalar_noise.h>
#include <torchvq/ops/scalar_quantize.h>

#include "detail/checks.h"

namespace torchvq::functional {
namespace {

/// Reshapes (*, C * D) to (*, C, D).
at::Tensor by_codebook(const at::Tensor& tokens, int64_t codebooks, int64_t dim) {
  TORCH_CHECK_VALUE(codebooks >= 1 && tokens.dim() >= 1 && tokens.sym_size(-1) == codebooks * dim,
                    "quantize_scalars: expected tokens to have ", codebooks, " times ", dim,
                    " features, one per codebook and number of levels, but got shape ",
                    tokens.sym_sizes());
  return tokens.unflatten(-1, {codebooks, dim});
}

void check_scale(const char* op, const at::Tensor& scale, const at::Tensor& tokens) {
  detail::check_floating(op, "scale", scale);
  TORCH_CHECK_VALUE(
      scale.dim() == 1 && tokens.dim() >= 1 && scale.sym_size(0) == tokens.sym_size(-1), op,
      ": expected scale to have one value per feature of tokens of shape ", tokens.sym_sizes(),
      ", but got shape ", scale.sym_sizes());
}

at::Tensor add_noise(const at::Tensor& codes, at::IntArrayRef levels, const at::Tensor& rng,
                     const QuantizeScalarsOptions& options) {
  if (!options.vqp_noise()) {
    return ops::scalar_noise(codes, levels, rng, options.noise(), options.stream());
  }
  // With three levels, half a step is 1/2.
  const std::vector<int64_t> threes(levels.size(), 3);
  return ops::scalar_noise(codes, threes, rng, 0.5, options.stream());
}

/// Codes (*, C * D) and indices (*, C); indices are (*) for one codebook.
QuantizeScalarsOutput quantize_features(const at::Tensor& tokens, at::IntArrayRef levels,
                                        const QuantizeScalarsOptions& options) {
  constexpr auto op = "quantize_scalars";
  detail::check_floating(op, "tokens", tokens);
  TORCH_CHECK_VALUE(options.noise() >= 0, op, ": expected noise to be at least 0, but got ",
                    options.noise());
  // Tokens of stacks are float32 or float64; a half-precision quotient would be rounded.
  const auto& scale = options.scale();
  if (scale) check_scale(op, *scale, tokens);
  auto features = scale ? tokens.div(scale->to(tokens.scalar_type())) : tokens;
  const bool one = options.codebooks() == 1;
  if (!one) {
    features = by_codebook(features, options.codebooks(), static_cast<int64_t>(levels.size()));
  }
  const auto& rotation = options.rotation();
  if (rotation) features = rotate_features(features, *rotation);
  auto [codes, indices] = ops::scalar_quantize(features, levels, options.bound());
  if (const auto& rng = options.rng(); rng && options.noise() > 0)
    codes = add_noise(codes, levels, *rng, options);
  if (rotation) codes = rotate_features(codes, *rotation, /*inverse=*/true);
  if (!one) codes = codes.flatten(-2);
  if (scale) codes = codes.mul(scale->to(codes.scalar_type()));
  if (options.mask()) {
    codes = fill_masked(codes, *options.mask());
    const auto absent = options.mask()->logical_not();
    indices = indices.masked_fill(one ? absent : absent.unsqueeze(-1), -1);
  }
  return {codes, indices};
}

}  // namespace

QuantizeScalarsOutput quantize_scalars(const at::Tensor& tokens, at::IntArrayRef levels,
                                       const QuantizeScalarsOptions& options) {
  auto found = quantize_features(tokens, levels, options);
  if (options.codebooks() == 1) found.indices = found.indices.unsqueeze(-1);
  return found;
}

QuantizeScalarsOutput finite_scalar_quantize(const at::Tensor& x, at::IntArrayRef levels,
                                             const QuantizeScalarsOptions& options,
                                             bool channel_first, bool keep_codebooks) {
  TORCH_CHECK_VALUE(keep_codebooks || options.codebooks() == 1,
                    "finite_scalar_quantize: expected keep_codebooks with several codebooks, but "
                    "got False with ",
                    options.codebooks());
  // The search needs features on the last axis.
  const bool moves = options.mask() || (channel_first && x.dim() > 2);
  auto tokens = moves ? pack_tokens(x, channel_first) : x;
  // Padding may hold anything, including NaN; zeros keep it out of every gradient.
  if (options.mask()) tokens = fill_masked(tokens, *options.mask());
  auto [codes, indices] = quantize_features(tokens, levels, options);
  codes = codes.to(x.scalar_type());
  if (keep_codebooks && options.codebooks() == 1) indices = indices.unsqueeze(-1);
  if (!moves) return {codes, indices};
  return {unpack_tokens(codes, x, channel_first),
          unpack_positions(indices, x.sym_sizes(), channel_first)};
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

std::tuple<at::Tensor, at::Tensor> finite_scalar_quantize_op(
    const at::Tensor& x, at::IntArrayRef levels, int64_t codebooks, bool channel_first,
    bool keep_codebooks, std::string_view bound, const std::optional<at::Tensor>& rotation,
    const std::optional<at::Tensor>& rng, double noise, const std::optional<at::Tensor>& mask,
    bool vqp_noise) {
  auto output = finite_scalar_quantize(x, levels,
                                       QuantizeScalarsOptions()
                                           .codebooks(codebooks)
                                           .bound(std::string(bound))
                                           .rotation(rotation)
                                           .rng(rng)
                                           .noise(noise)
                                           .mask(mask)
                                           .vqp_noise(vqp_noise),
                                       channel_first, keep_codebooks);
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
  m.def(
      "finite_scalar_quantize(Tensor x, int[] levels, *, int codebooks=1, bool "
      "channel_first=False, "
      "bool keep_codebooks=False, str bound='tanh', Tensor? rotation=None, Tensor? rng=None, "
      "float noise=0.0, Tensor? mask=None, bool vqp_noise=False) "
      "-> (Tensor quantized, Tensor indices)",
      torchvq::functional::finite_scalar_quantize_op);
  m.def("soft_clamp(Tensor x, Tensor limit) -> Tensor", TORCH_FN(torchvq::functional::soft_clamp));
  m.def(
      "decode_scalars(Tensor indices, int[] levels, bool symmetric=False, "
      "Tensor? rotation=None, Tensor? scale=None, ScalarType dtype=float) -> Tensor",
      TORCH_FN(torchvq::functional::decode_scalars));
}
