// Autocast off for a function that C++ calls directly, past the dispatcher, in which operators turn
// it off.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torchvq::detail {

/// Autocast is off while an instance exists.
class WithoutAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard_{c10::autocast_dispatch_keyset};
};

}  // namespace torchvq::detail
