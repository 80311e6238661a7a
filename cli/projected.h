// Common parts of commands for codecs of codebooks with linear maps.
#pragma once

#include <torchvq/fit/projected_codec.h>

#include <vector>

#include "report.h"

namespace torchvq::cli {

/// Reports codes, levels and stacks, like add_stack().
void add_projected(Report& report, const fit::ProjectedCodec& codec, bool show_size = true);

/// Reports usage and cost of the codes.
void add_projected_usage(Report& report, const fit::ProjectedCodec& codec,
                         const std::vector<at::Tensor>& counts);

}  // namespace torchvq::cli
