#include "ops/scalar_decode.h"

#include <torch/library.h>

#include <torchvq/ops/scalar_decode.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "detail/scalar_levels.h"

namespace torchvq {

namespace detail {

void check_scalar_level_indices(const at::Tensor& indices, at::IntArrayRef levels) {
  constexpr auto op = "scalar_level_indices";
  check_dtype(op, "indices", indices, at::kLong);
  check_scalar_levels(op, levels, 2);
}

void check_scalar_decode(const at::Tensor& indices, at::IntArrayRef levels, at::ScalarType dtype) {
  constexpr auto op = "scalar_decode";
  check_dtype(op, "indices", indices, at::kLong);
  check_scalar_levels(op, levels, 2);
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble, op,
                   ": expected dtype to be float32 or float64, but got ", dtype);
}

void check_scalar_indices(const at::Tensor& level_indices, at::IntArrayRef levels) {
  constexpr auto op = "scalar_indices";
  check_dtype(op, "level_indices", level_indices, at::kLong);
  check_scalar_levels(op, levels, 2);
  TORCH_CHECK_VALUE(
      level_indices.dim() >= 1 && level_indices.sym_size(-1) == static_cast<int64_t>(levels.size()),
      op, ": expected level_indices to have ", levels.size(),
      " features, one per number of levels, but got shape ", level_indices.sym_sizes());
}

void check_scalar_code_indices(const at::Tensor& codes, at::IntArrayRef levels) {
  constexpr auto op = "scalar_code_indices";
  check_floating(op, "codes", codes);
  check_scalar_levels(op, levels, 2);
  TORCH_CHECK_VALUE(codes.dim() >= 1 && codes.sym_size(-1) == static_cast<int64_t>(levels.size()),
                    op, ": expected codes to have ", levels.size(),
                    " features, one per number of levels, but got shape ", codes.sym_sizes());
}

}  // namespace detail

namespace ops {

at::Tensor scalar_level_indices(const at::Tensor& indices, at::IntArrayRef levels) {
  static auto op = detail::op_handle<at::Tensor(const at::Tensor&, at::IntArrayRef)>(
      "torchvq::scalar_level_indices");
  return op.call(indices, levels);
}

at::Tensor scalar_indices(const at::Tensor& level_indices, at::IntArrayRef levels) {
  static auto op =
      detail::op_handle<at::Tensor(const at::Tensor&, at::IntArrayRef)>("torchvq::scalar_indices");
  return op.call(level_indices, levels);
}

at::Tensor scalar_decode(const at::Tensor& indices, at::IntArrayRef levels, bool symmetric,
                         at::ScalarType dtype) {
  using Signature =
      at::Tensor(const at::Tensor&, at::IntArrayRef, bool, std::optional<at::ScalarType>);
  static auto op = detail::op_handle<Signature>("torchvq::scalar_decode");
  return op.call(indices, levels, symmetric, dtype);
}

at::Tensor scalar_code_indices(const at::Tensor& codes, at::IntArrayRef levels, bool symmetric) {
  using Signature = at::Tensor(const at::Tensor&, at::IntArrayRef, bool);
  static auto op = detail::op_handle<Signature>("torchvq::scalar_code_indices");
  return op.call(codes, levels, symmetric);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("scalar_level_indices(Tensor indices, int[] levels) -> Tensor");
  m.def("scalar_indices(Tensor level_indices, int[] levels) -> Tensor");
  // No numeric default: packages of AOTInductor take the default of a ScalarType for
  // an int and fail to load.
  m.def(
      "scalar_decode(Tensor indices, int[] levels, *, bool symmetric=False, "
      "ScalarType? dtype=None) -> Tensor");
  m.def("scalar_code_indices(Tensor codes, int[] levels, *, bool symmetric=False) -> Tensor");
}
