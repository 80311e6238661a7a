#include <torch/library.h>

#include "detail/no_gradient.h"

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("scalar_level_indices",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
  m.impl("scalar_decode",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
  m.impl("scalar_indices",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
  m.impl("scalar_code_indices",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
}
