// The default of the option `vqp_compat` of every class.
#pragma once

#include <torchvq/export.h>

namespace torchvq {

/// Whether TORCHVQ_COMPAT is "1" in the environment: options created then have vqp_compat in both
/// languages, unless it is set explicitly. Unset, empty or "0": false.
///
/// Throws  c10::ValueError for another value.
TORCHVQ_API bool vqp_compat_by_default();

}  // namespace torchvq
