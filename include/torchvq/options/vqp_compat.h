// What the option `vqp_compat` of every class is where it is not given.
#pragma once

#include <torchvq/export.h>

namespace torchvq {

/// Whether TORCHVQ_COMPAT is "1" in the environment: options that are made then have vqp_compat, in
/// both languages, unless it is set otherwise. Unset, empty or "0": false.
///
/// Throws  c10::ValueError for another value.
TORCHVQ_API bool vqp_compat_by_default();

}  // namespace torchvq
