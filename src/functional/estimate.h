// Names of the estimators, for callers that support additional ones.
#pragma once

#include <string>

namespace torchvq::functional {

/// Whether the gradient goes only to x, and depends on nothing but x and the codes: operators that also
/// compute losses have these estimators.
bool is_plain_estimator(const std::string& name, double sync_update_v);

/// Whether estimate() has an estimator of this name.
bool is_estimator(const std::string& name);

}  // namespace torchvq::functional
