#include "modules/search.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <torchvq/distributed/noise_rng.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/ops/snapshot.h>

namespace torchvq::detail {

namespace F = functional;
using OptionalTensor = std::optional<at::Tensor>;

Request request_of_level(const VectorQuantizeImpl& vq, const OptionalTensor& targets,
                         const OptionalTensor& mask, std::optional<double> temperature, bool frozen,
                         const distributed::Ranks& ranks) {
  return {.targets = targets,
          .mask = mask,
          .topk = std::nullopt,
          .temperature = temperature.value_or(vq.options.sample_codebook_temp()),
          .frozen = frozen,
          .transform = {},
          .ema_update = vq.resolved().ema_update,
          .accumulate = false,
          .weight = std::nullopt,
          .ranks = ranks};
}

void prepare(VectorQuantizeImpl& vq, const at::Tensor& x, const OptionalTensor& mask, bool frozen,
             const distributed::Ranks& ranks) {
  const bool learning = vq.is_training() && !(frozen && vq.codebook_state->initialised());
  vq.codebook_state->prepare(x, mask, learning, ranks);
}

bool takes_gradient(const at::Tensor& x) { return at::GradMode::is_enabled() && x.requires_grad(); }

std::string estimator_of(const VectorQuantizeImpl& vq, const at::Tensor& x, bool codes_learn) {
  if (!vq.is_training()) {
    return "none";
  }
  const bool compat = vq.options.vqp_compat();
  if ((compat || codes_learn) && !takes_gradient(x)) {
    // With nothing to route to the input, the reference keeps the gradient of the Gumbel softmax.
    return compat && vq.options.straight_through() ? "gumbel" : "none";
  }
  if (!vq.options.route_gradients_to_input()) {
    return vq.options.straight_through() ? "gumbel" : "none";
  }
  if (vq.options.directional_reparam()) {
    // The estimator adds noise to the code only to obtain a gradient; without one, the code is
    // returned.
    return takes_gradient(x) ? "directional_reparam" : "none";
  }
  if (!vq.resolved().rotation_trick) {
    return "straight_through";
  }
  return compat ? "vqp_rotation_trick" : "rotation_trick";
}

bool draws_frozen(const VectorQuantizeOptions& options) {
  return options.stochastic_sample_codes() || options.directional_reparam() ||
         (options.orthogonal_reg_weight() > 0 && options.orthogonal_reg_max_codes());
}

at::Tensor stored_codes(VectorQuantizeImpl& vq, at::ScalarType dtype) {
  const auto codes = vq.codebook_state->codes();
  // The input determines the precision of the arithmetic, even if the module was cast to double.
  const bool narrow = codes.scalar_type() == at::kDouble && dtype != at::kDouble;
  return narrow ? codes.to(at::kFloat) : codes;
}

at::Tensor codes_to_search(VectorQuantizeImpl& vq, const Request& request, const at::Tensor& tokens,
                           at::ScalarType dtype) {
  if (!request.transform) {
    return stored_codes(vq, dtype);
  }
  const auto codes = request.transform(ops::snapshot(vq.codebook_state->codes()));
  const int64_t heads = vq.codebook_state->num_codebooks(), shared = vq.options.heads() / heads;
  const int64_t batch = tokens.size(0), positions = tokens.size(1);
  TORCH_CHECK_VALUE(
      codes.dim() == 5 && codes.size(0) == heads && codes.size(1) == batch * shared &&
          codes.size(2) == positions,
      "VectorQuantize: expected codebook_transform_fn to return codes of each token of "
      "shape (H, B, N, K, D), H, B and N being ",
      at::IntArrayRef({heads, batch * shared, positions}), ", but got shape ", codes.sizes());
  // The heads that share a codebook count as items of the batch; here they follow the positions.
  if (shared > 1) return codes.unflatten(1, {batch, shared}).transpose(2, 3).flatten(1, 3);
  return codes.flatten(1, 2);
}

CodesOfStep codes_of_step(VectorQuantizeImpl& vq, const at::Tensor& projected,
                          const at::Tensor& tokens, const OptionalTensor& mask,
                          const Request& request, bool learns) {
  std::optional<InPlaceStep> own;
  if (vq.is_training() && vq.learns_in_place() && !request.frozen) {
    // A step learns in inference mode, too, as it does under no_grad.
    const c10::InferenceMode no_inference(false);
    const at::AutoGradMode enable_grad(true);
    const auto codebook = codes_to_search(vq, request, tokens, projected.scalar_type());
    own = in_place_step(vq, projected, codebook, mask, request, learns);
    if (vq.options.vqp_compat() && vq.options.affine_param()) {
      // The reference searches again after the step, and counts the tokens once more.
      vq.codebook_state->update_affine(projected.detach(), mask, request.ranks);
    }
  }
  return {codes_to_search(vq, request, tokens, projected.scalar_type()), own};
}

F::QuantizeOptions search_options(const VectorQuantizeImpl& vq, const Request& request,
                                  const std::string& estimator) {
  const auto& options = vq.options;
  const bool sampling = vq.is_training() && options.stochastic_sample_codes();
  return F::QuantizeOptions()
      .topk(request.topk)
      .metric(vq.codebook_state->metric())
      .estimator(estimator)
      .temperature(sampling ? std::optional(request.temperature) : std::nullopt)
      .gradient_temperature(request.temperature)
      .variance(options.directional_reparam_variance())
      .sync_update_v(vq.is_training() ? options.sync_update_v() : 0);
}

SearchResult choose(VectorQuantizeImpl& vq, const at::Tensor& projected, const at::Tensor& tokens,
                    const OptionalTensor& mask, const Request& request,
                    const SearchOptions& options) {
  const auto codebook = codes_of_step(vq, projected, tokens, mask, request).codebook;
  const auto rng =
      distributed::noise_rng(options.rng.value_or(vq.codebook_state->rng), request.ranks);
  auto [quantized, indices, codes, inputs] = F::quantize(
      projected, codebook, rng, mask,
      search_options(
          vq, request,
          options.estimator.value_or(estimator_of(vq, projected, takes_gradient(codebook))))
          .chosen(options.chosen));
  return {quantized, {inputs, codebook, mask, codes, indices}, tokens};
}

}  // namespace torchvq::detail
