#pragma once

#include <c10/util/Exception.h>

#include <string>

#include "options/text.h"

namespace torchvq::detail {

/// Checks of options, with messages that name their class.
struct ExpectOption {
  const char* owner;

  template <typename T>
  void operator()(bool holds, const char* name, const std::string& condition,
                  const T& value) const {
    TORCH_CHECK_VALUE(holds, owner, ": expected ", name, " to be ", condition, ", but got ",
                      option_text(value));
  }
};

}  // namespace torchvq::detail
