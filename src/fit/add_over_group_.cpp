#include "fit/add_over_group_.h"

#include <ATen/ops/cat.h>

namespace torchvq::fit {

void add_over_group_(const distributed::Group& group, at::Tensor& counts,
                     functional::ReconstructionError& error) {
  if (group.alone()) return;
  const auto packed = at::cat({counts, error.words()});
  group.sum_(packed, "counts and errors");
  counts = packed.narrow(0, 0, counts.size(0)).clone();
  error.set_words(packed.narrow(0, counts.size(0), packed.size(0) - counts.size(0)).contiguous());
}

}  // namespace torchvq::fit
