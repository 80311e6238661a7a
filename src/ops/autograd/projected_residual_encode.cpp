#include <torch/library.h>

#include "detail/no_gradient.h"

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("projected_residual_encode",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
}
