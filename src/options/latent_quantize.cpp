#include <torchvq/options/latent_quantize.h>

#include <c10/util/Exception.h>

#include "detail/scalar_levels.h"
#include "detail/token_checks.h"

namespace torchvq {

void LatentQuantizeOptions::validate() const {
  constexpr auto name = "LatentQuantize";
  TORCH_CHECK_VALUE(dim() >= 1, name, ": expected dim to be at least 1, but got ", dim());
  TORCH_CHECK_VALUE(num_codebooks() >= 1, name,
                    ": expected num_codebooks to be at least 1, but got ", num_codebooks());
  detail::check_scalar_levels(name, levels(), 2);
  detail::check_non_negative(name, "commitment_loss_weight", commitment_loss_weight());
  detail::check_non_negative(name, "quantization_loss_weight", quantization_loss_weight());
  TORCH_CHECK_VALUE(optimize_values() || !in_place_codebook_optimizer(), name,
                    ": expected optimize_values with in_place_codebook_optimizer, but got false");
}

}  // namespace torchvq
