#include "ops/scalar_decode.h"

#include <vector>

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor scalar_level_indices(const at::Tensor& indices, at::IntArrayRef levels) {
  detail::check_scalar_level_indices(indices, levels);
  auto sizes = indices.sym_sizes().vec();
  sizes.emplace_back(static_cast<int64_t>(levels.size()));
  return indices.new_empty_symint(sizes);
}

at::Tensor scalar_decode(const at::Tensor& indices, at::IntArrayRef levels, bool /*symmetric*/,
                         std::optional<at::ScalarType> wanted) {
  const auto dtype = wanted.value_or(at::kFloat);
  detail::check_scalar_decode(indices, levels, dtype);
  auto sizes = indices.sym_sizes().vec();
  sizes.emplace_back(static_cast<int64_t>(levels.size()));
  return indices.new_empty_symint(sizes, indices.options().dtype(dtype));
}

at::Tensor scalar_indices(const at::Tensor& level_indices, at::IntArrayRef levels) {
  detail::check_scalar_indices(level_indices, levels);
  const auto sizes = level_indices.sym_sizes();
  return level_indices.new_empty_symint(sizes.slice(0, sizes.size() - 1));
}

at::Tensor scalar_code_indices(const at::Tensor& codes, at::IntArrayRef levels,
                               bool /*symmetric*/) {
  detail::check_scalar_code_indices(codes, levels);
  const auto sizes = codes.sym_sizes();
  return codes.new_empty_symint(sizes.slice(0, sizes.size() - 1), codes.options().dtype(at::kLong));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("scalar_level_indices", scalar_level_indices);
  m.impl("scalar_indices", scalar_indices);
  m.impl("scalar_decode", scalar_decode);
  m.impl("scalar_code_indices", scalar_code_indices);
}

}  // namespace torchvq
