// The moments that FSP pulls its latents to, by name.
#pragma once

#include <string>

#include <torchvq/ops/token_moments.h>

namespace torchvq::detail {

/// Throws c10::ValueError for a name that is none.
functional::MomentTargets vector_norm(const std::string& name);

}  // namespace torchvq::detail
