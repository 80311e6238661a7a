// The moment targets of FSP's latents, by name.
#pragma once

#include <string>

#include <torchvq/ops/token_moments.h>

namespace torchvq::functional {

/// Throws c10::ValueError for an unknown name.
ops::MomentTargets vector_norm(const std::string& name);

}  // namespace torchvq::functional
