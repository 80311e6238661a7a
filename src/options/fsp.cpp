#include <torchvq/options/fsp.h>

#include <c10/util/Exception.h>

#include "detail/distribution.h"
#include "detail/scalar_levels.h"
#include "modules/vector_norm.h"

namespace torchvq {

void FSPOptions::validate() const {
  detail::check_scalar_levels("FSP", levels(), 2);
  TORCH_CHECK_VALUE(dim().value_or(1) >= 1, "FSP: expected dim to be at least 1, but got ",
                    dim().value_or(1));
  TORCH_CHECK_VALUE(quantize_rate() >= 0 && quantize_rate() <= 1,
                    "FSP: expected quantize_rate to be in [0, 1], but got ", quantize_rate());
  detail::parse_distribution("FSP", act_name());
  detail::vector_norm(vector_norm());
}

}  // namespace torchvq
