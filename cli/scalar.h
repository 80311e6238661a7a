// Common parts of commands for codecs of scalar levels or signs.
#pragma once

#include <torchvq/fit/scalar_codec.h>

#include <vector>

#include "report.h"

namespace torchvq::cli {

/// Reports the method, levels, codes and codebooks, like add_stack().
void add_scalar(Report& report, const fit::ScalarCodec& codec, bool show_size = true);

/// Reports the cost of the codes, and their usage if there are counts.
void add_scalar_usage(Report& report, const fit::ScalarCodec& codec,
                      const std::vector<at::Tensor>& counts);

}  // namespace torchvq::cli
