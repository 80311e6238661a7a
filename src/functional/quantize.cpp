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
                            const QuantizeOptions& options) {
  const auto wide = codebook.to(detail::compute_dtype(x));
  TORCH_CHECK_VALUE(!options.topk(), "quantize: expected topk or sampling, but got both");
  const auto indices =
      ops::sample_codes(x.detach(), wide.detach(), rng, *options.temperature(), options.metric());
  return {indices, detail::mark_non_finite(ops::lookup_codes(wide, indices), x)};
}

SearchedCodes chosen_codes(const at::Tensor& x, const at::Tensor& codebook,
                           const QuantizeOptions& options) {
  TORCH_CHECK_VALUE(!options.topk(), "quantize: expected topk or chosen, but got both");
  const auto wide = codebook.to(detail::compute_dtype(x));
  const auto codes = ops::lookup_codes(wide, *options.chosen());
  return {*options.chosen(), detail::mark_non_finite(codes, x)};
}

SearchedCodes find_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                         const QuantizeOptions& options) {
  if (options.chosen()) {
    return chosen_codes(x, codebook, options);
  }
  if (codebook.dim() == 4) {
    auto [indices, codes] = nearest_token_code(x, codebook, options.metric(), options.topk());
    return {indices, codes};
  }
  if (options.temperature().value_or(0) > 0) {
    return sampled_codes(x, codebook, rng, options);
  }
  const auto nearest = ops::nearest_code(
      x, codebook,
      ops::NearestCodeOptions().metric(options.metric()).topk(options.topk()).return_codes(true));
  return {nearest.indices, nearest.codes};
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
  const auto sampled =
      ops::gumbel_straight_through(x, codebook.to(x.scalar_type()), found.indices,
                                   options.gradient_temperature(), options.metric());
  const auto output = detail::mark_non_finite(sampled, x);
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
  auto found = find_codes(wide, codebook, rng, options);

  at::Tensor quantized;
  if (found.codes.dim() == 4) {
    // Each candidate is quantized as if it were a separate token.
    const auto repeated = inputs.unsqueeze(2).expand_as(found.codes).flatten(1, 2);
    quantized = estimate_codes(repeated, found.codes.flatten(1, 2), found, codebook, rng, options)
                    .reshape_symint(found.codes.sym_sizes());
  } else {
    quantized = estimate_codes(inputs, found.codes, found, codebook, rng, options);
  }
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
