#include "modules/call_checks.h"

#include <cmath>

#include <c10/util/accumulate.h>

#include "detail/checks.h"
#include "detail/index_range.h"
#include "modules/indices.h"

namespace torchvq::detail {

void check_options_set_later(const VectorQuantizeImpl& vq) {
  vq.options.validate();
  vq.codebook_state->options.validate();
}

void check_affine_param(const VectorQuantizeImpl& vq) {
  const auto& codebook = *vq.codebook_state;
  const bool built = codebook.batch_mean.defined();
  TORCH_CHECK_VALUE(vq.options.affine_param() == built && codebook.options.affine_param() == built,
                    "VectorQuantize: expected affine_param to be given to the constructor, which "
                    "makes the statistics of the map, but got set on the module");
}

void check_temperature(const VectorQuantizeOptions& options, std::optional<double> temperature,
                       const std::string& owner) {
  if (!temperature && options.stochastic_sample_codes()) {
    temperature = options.sample_codebook_temp();
  }
  TORCH_CHECK_VALUE(!temperature || std::isfinite(*temperature), owner,
                    ": expected sample_codebook_temp to be finite, but got ",
                    temperature.value_or(0));
}

void check_targets(const at::Tensor& targets, const at::Tensor& x, const Layout& layout,
                   int64_t codebook_size) {
  check_defined(layout.owner.c_str(), "indices", targets);
  const auto shape = layout.indices_shape(x);
  TORCH_CHECK_VALUE(targets.sizes() == at::IntArrayRef(shape), layout.owner,
                    ": expected indices to have shape ", at::IntArrayRef(shape), ", but got shape ",
                    targets.sizes());
  check_target_values(targets, codebook_size, layout.owner);
}

at::Tensor unflattened(const at::Tensor& targets, const at::Tensor& x, const Layout& layout) {
  check_defined(layout.owner.c_str(), "indices", targets);
  const auto shape = layout.indices_shape(x);
  const bool flat = targets.dim() == 1 && targets.numel() == c10::multiply_integers(shape);
  return flat ? targets.reshape(shape) : targets;
}

void check_target_values(const at::Tensor& targets, int64_t codebook_size,
                         const std::string& owner) {
  const auto whole = as_int64(owner, targets);
  check_index_range(owner.c_str(), "indices", whole, codebook_size);
}

void check_ema_weight(const at::Tensor& weight, const at::Tensor& cluster_size) {
  check_defined("VectorQuantize", "ema_update_weight", weight);
  bool fits = weight.dim() <= 2;
  for (int64_t axis = 1; fits && axis <= weight.dim(); ++axis) {
    fits = weight.size(-axis) == 1 || weight.size(-axis) == cluster_size.size(-axis);
  }
  TORCH_CHECK_VALUE(fits,
                    "VectorQuantize: expected ema_update_weight to be of a shape that broadcasts "
                    "to ",
                    cluster_size.sizes(), " (H, K), but got shape ", weight.sizes());
  TORCH_CHECK_VALUE(!weight.is_cpu() || weight.isfinite().all().item<bool>(),
                    "VectorQuantize: expected ema_update_weight to be finite, but got NaN or "
                    "infinity");
}

}  // namespace torchvq::detail
