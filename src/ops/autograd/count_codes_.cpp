#include <torchvq/ops/count_codes_.h>

#include <torch/library.h>

#include "detail/no_gradient.h"

namespace torchvq {
namespace {

void count_codes_(at::TensorList counts, at::TensorList indices) {
  detail::without_gradient({counts}, [&] { ops::count_codes_(counts, indices); });
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("count_codes_", count_codes_); }

}  // namespace torchvq
