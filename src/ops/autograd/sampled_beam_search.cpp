#include <torch/library.h>

#include "detail/no_gradient.h"

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("sampled_beam_search",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
}
