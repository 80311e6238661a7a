#include "ops/count_codes_.h"

#include <torch/library.h>

namespace torchvq {

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("count_codes_", detail::check_count_codes_); }

}  // namespace torchvq
