#include <torchvq/functional/quantize.h>

#include <tuple>

#include <ATen/core/grad_mode.h>
#include <torch/library.h>

#include <torchvq/functional/estimate.h>
#include <torchvq/ops/gumbel_straight_through.h>
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/sample_codes.h>
#include <torchvq/ops/sync_update_v.h>
#include <torchvq/ops/unit_vectors.h>

#include "detail/checks.h"
#include "detail/non_finite.h"
#include "functional/estimate.h"
#include "functional/token_codes.h"
#include "ops/unit_vectors.h"

namespace torchvq::functional {
namespace {

struct SearchedCodes {
  at::Tensor indices;
  at::Tensor codes;
};

SearchedCodes sampled_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                            double temperature, const QuantizeOptions& options) {
  const auto wide = codebook.to(detail::compute_dtype(x));
  const auto indices = ops::sample_codes(x.detach(), wide.detach(), rng, temperature,
                                         options.metric(), /*stream=*/0, options.topk());
  if (!options.topk()) {
    return {indices, detail::mark_non_finite(ops::lookup_codes(wide, indices), x)};
  }
  const auto rows = ops::lookup_codes(wide, indices.flatten(1));
  const auto codes = rows.unflatten_symint(1, {indices.sym_size(1), indices.sym_size(2)});
  return {indices, detail::mark_non_finite(codes, x.unsqueeze(2))};
}

SearchedCodes chosen_codes(const at::Tensor& x, const at::Tensor& codebook,
                           const at::Tensor& chosen, const QuantizeOptions& options) {
  TORCH_CHECK_VALUE(!options.topk(), "quantize: expected topk or chosen, but got both");
  const auto wide = codebook.to(detail::compute_dtype(x));
  return {chosen, detail::mark_non_finite(ops::lookup_codes(wide, chosen), x)};
}

SearchedCodes find_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                         const std::optional<at::Tensor>& mask, const QuantizeOptions& options) {
  if (const auto& chosen = options.chosen()) return chosen_codes(x, codebook, *chosen, options);
  const double temperature = options.temperature().value_or(0);
  const bool samples = temperature > 0;
  if (codebook.dim() == 4) {
    auto [indices, codes] =
        samples
            ? sampled_token_code(x, codebook, rng, temperature, options.metric(), options.topk())
            : nearest_token_code(x, codebook, options.metric(), options.topk());
    return {indices, codes};
  }
  if (samples) return sampled_codes(x, codebook, rng, temperature, options);
  // The gradient of Gumbel softmax needs the codes of padding, too.
  const bool leaves_out = mask && options.estimator() != "gumbel";
  const auto nearest = ops::nearest_code(x, codebook,
                                         ops::NearestCodeOptions()
                                             .metric(options.metric())
                                             .topk(options.topk())
                                             .return_codes(true)
                                             .mask(leaves_out ? mask : std::nullopt));
  return {nearest.indices, nearest.codes};
}

/// The codes with the gradient of ops::gumbel_straight_through(). x (H, T, D), or with `topk`
/// candidates (H, T * topk, D).
at::Tensor gumbel_codes(const at::Tensor& x, const SearchedCodes& found, const at::Tensor& codebook,
                        const QuantizeOptions& options) {
  const auto wide = codebook.to(x.scalar_type());
  const double temperature = options.gradient_temperature();
  if (codebook.dim() == 3) {
    return ops::gumbel_straight_through(x, wide, found.indices.flatten(1), temperature,
                                        options.metric());
  }
  const auto own =
      options.topk() ? wide.repeat_interleave_symint(found.indices.sym_size(2), 1) : wide;
  const auto searched = options.metric() == "cosine" ? ops::unit_vectors(own) : own;
  return ops::gumbel_straight_through(one_token_heads(x), one_token_codebooks(searched),
                                      found.indices.reshape({-1, 1}), temperature, options.metric())
      .view_symint(x.sym_sizes());
}

/// Value: the codes. Gradient: as documented for the estimator. x and codes are (H, T, D).
at::Tensor estimate_codes(const at::Tensor& x, const at::Tensor& codes, const SearchedCodes& found,
                          const at::Tensor& codebook, const at::Tensor& rng,
                          const QuantizeOptions& options) {
  if (is_estimator(options.estimator())) {
    return functional::estimate(x, codes, rng,
                                EstimateOptions()
                                    .estimator(options.estimator())
                                    .variance(options.variance())
                                    .sync_update_v(options.sync_update_v()));
  }
  TORCH_CHECK_VALUE(options.estimator() == "gumbel",
                    "quantize: expected estimator to be straight_through, rotation_trick, "
                    "vqp_rotation_trick, directional_reparam, gumbel or none, but got ",
                    options.estimator());
  const auto output = detail::mark_non_finite(gumbel_codes(x, found, codebook, options), x);
  return options.sync_update_v() != 0 ? ops::sync_update_v(output, options.sync_update_v())
                                      : output;
}

}  // namespace

QuantizeOutput quantize(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                        const std::optional<at::Tensor>& mask, const QuantizeOptions& options) {
  detail::check_floating("quantize", "x", x);
  detail::check_rank("quantize", "x", x, 3, "(H, T, D)");
  const auto wide = x.to(detail::compute_dtype(x));
  const auto inputs = options.metric() == "cosine" ? ops::unit_vectors(wide) : wide;
  auto found = find_codes(wide, codebook, rng, mask, options);

  at::Tensor quantized;
  if (found.codes.dim() == 4) {
    // Each candidate is quantized as if it were a separate token.
    const auto repeated = inputs.unsqueeze(2).expand_as(found.codes).flatten(1, 2);
    quantized = estimate_codes(repeated, found.codes.flatten(1, 2), found, codebook, rng, options)
                    .reshape_symint(found.codes.sym_sizes());
  } else {
    quantized = estimate_codes(inputs, found.codes, found, codebook, rng, options);
  }
  const bool saved =
      at::GradMode::is_enabled() && (x.requires_grad() || found.codes.requires_grad());
  // Without an estimator these are the codes, which losses save: users may write to the output.
  if (saved && options.estimator() == "none") quantized = quantized.clone();
  if (mask) {
    const auto absent = mask->logical_not();
    found.indices =
        found.indices.masked_fill(found.indices.dim() == 3 ? absent.unsqueeze(-1) : absent, -1);
  }
  return {quantized, found.indices, found.codes, inputs};
}

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> quantize_op(
    const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
    const std::optional<at::Tensor>& mask, std::optional<int64_t> topk, std::string_view metric,
    std::string_view estimator, std::optional<double> temperature, double gradient_temperature,
    double variance, double sync_update_v, const std::optional<at::Tensor>& chosen) {
  const auto output = quantize(x, codebook, rng, mask,
                               QuantizeOptions()
                                   .topk(topk)
                                   .metric(std::string(metric))
                                   .estimator(std::string(estimator))
                                   .temperature(temperature)
                                   .gradient_temperature(gradient_temperature)
                                   .variance(variance)
                                   .sync_update_v(sync_update_v)
                                   .chosen(chosen));
  return {output.quantized, output.indices, output.codes, output.inputs};
}

}  // namespace

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "quantize(Tensor x, Tensor codebook, Tensor rng, *, Tensor? mask=None, int? topk=None, "
      "str metric='euclidean', str estimator='straight_through', float? temperature=None, "
      "float gradient_temperature=1.0, float variance=0.005, float sync_update_v=0.0, "
      "Tensor? chosen=None) "
      "-> (Tensor quantized, Tensor indices, Tensor codes, Tensor inputs)",
      torchvq::functional::quantize_op);
}
