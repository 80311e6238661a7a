#pragma once

#include <string>

#include "options/expect.h"

namespace torchvq::detail {

/// Checks the options of quantizer dropout of a stack with this number of levels.
template <typename Options>
void check_dropout(const ExpectOption& expect, const Options& options, int64_t levels) {
  const auto cutoff = options.quantize_dropout_cutoff_index(), last = levels - 1;
  const bool drops = options.quantize_dropout() && last > 0;
  expect(cutoff >= 0 && (!drops || cutoff <= last), "quantize_dropout_cutoff_index",
         "in [0, " + std::to_string(last) + "]", cutoff);
  const auto multiple = options.quantize_dropout_multiple_of();
  expect(multiple >= 1, "quantize_dropout_multiple_of", "at least 1", multiple);
}

}  // namespace torchvq::detail
