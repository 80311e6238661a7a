#include <torch/library.h>

#include "detail/no_gradient.h"

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("extend_paths",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
}
