#include "ops/sample_codes.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor sample_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                        double temperature, c10::string_view metric, int64_t stream) {
  detail::check_sample_codes(x, codebook, rng, temperature, metric);
  return x.new_empty_symint({x.sym_size(0), x.sym_size(1)}, x.options().dtype(at::kLong));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("sample_codes", sample_codes); }

}  // namespace torchvq
