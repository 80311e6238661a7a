#include "ops/sample_codes.h"

#include <torch/library.h>

#include "ops/nearest_code.h"

namespace torchvq {
namespace {

at::Tensor sample_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                        double temperature, c10::string_view metric, int64_t /*stream*/,
                        std::optional<int64_t> topk) {
  detail::check_sample_codes(x, codebook, rng, temperature, metric, topk);
  return x.new_empty_symint(detail::nearest_code_shape(x, topk), x.options().dtype(at::kLong));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("sample_codes", sample_codes); }

}  // namespace torchvq
