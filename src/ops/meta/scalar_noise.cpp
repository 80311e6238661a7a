#include "ops/scalar_noise.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor scalar_noise(const at::Tensor& codes, at::IntArrayRef levels, const at::Tensor& rng,
                        double fraction, int64_t /*stream*/) {
  detail::check_scalar_noise(codes, levels, rng, fraction);
  return codes.new_empty_symint(codes.sym_sizes());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("scalar_noise", scalar_noise); }

}  // namespace torchvq
