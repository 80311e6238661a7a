#include "ops/nearest_code.h"

#include <torch/library.h>

namespace torchvq {
namespace {

detail::NearestCodeTensors nearest_code(const at::Tensor& x, const at::Tensor& codebook,
                                        std::string_view metric,
                                        const std::optional<at::Tensor>& bias,
                                        std::optional<int64_t> topk, bool return_codes,
                                        bool return_distances,
                                        const std::optional<at::Tensor>& mask) {
  detail::check_nearest_code(x, codebook, metric, bias, topk, mask);
  const auto options = x.options().dtype(detail::value_dtype(x, codebook));
  const auto shape = detail::nearest_code_shape(x, topk);
  auto codes_shape = shape;
  codes_shape.push_back(x.sym_size(-1));
  const c10::SymDimVector none = {c10::SymInt(0)};
  return {x.new_empty_symint(shape, options.dtype(at::kLong)),
          x.new_empty_symint(return_codes ? codes_shape : none, options),
          x.new_empty_symint(return_distances ? shape : none, options)};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("nearest_code", nearest_code); }

}  // namespace torchvq
