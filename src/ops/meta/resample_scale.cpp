#include "ops/resample_scale.h"

#include <vector>

#include <c10/util/accumulate.h>
#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor resample_scale(const at::Tensor& input, at::IntArrayRef size, c10::SymIntArrayRef full,
                          std::string_view direction, at::IntArrayRef kernel) {
  const auto known = detail::check_resample_scale(input, size, full, direction, kernel);
  const auto taps = c10::multiply_integers(kernel);
  if (detail::to_tokens(known)) {
    const auto cells = detail::check_grid("resample_scale", size);
    return input.new_empty_symint({input.sym_size(0), cells, input.sym_size(1) * taps});
  }
  std::vector<c10::SymInt> shape{input.sym_size(0), input.sym_size(2) / taps};
  shape.insert(shape.end(), full.begin(), full.end());
  return input.new_empty_symint(shape);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("resample_scale", resample_scale); }

}  // namespace torchvq
