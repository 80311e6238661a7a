// The moments that FSP pulls its latents to, by name.
#pragma once

#include <string>

#include <torchvq/ops/token_moments.h>

namespace torchvq::functional {

/// Throws c10::ValueError for a name that is none.
ops::MomentTargets vector_norm(const std::string& name);

}  // namespace torchvq::functional
