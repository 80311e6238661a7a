#include <torch/library.h>

#include "detail/no_gradient.h"

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("ema_update_tokens_",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
}
