// Names of the estimators, for callers that support additional ones.
#pragma once

#include <string>

namespace torchvq::functional {

/// Whether estimate() has an estimator of this name.
bool is_estimator(const std::string& name);

}  // namespace torchvq::functional
