#include "ops/advance_rng_.h"

#include <torch/library.h>

namespace torchvq {

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("advance_rng_", detail::check_advance_rng_); }

}  // namespace torchvq
