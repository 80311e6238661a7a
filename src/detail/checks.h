// Argument checks shared by all operators. Message form:
// `<op>: expected <arg> to be <condition>, but got <value>`.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace torchvq::detail {

/// C++ has tensors without anything in them, at::Tensor(), of which torch says little.
inline void check_defined(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(tensor.defined(), op, ": expected ", name,
                   " to be a tensor, but got an undefined one");
}

/// Kernels read rows, which sparse, MKL-DNN and nested tensors do not have. Nested ones may have the
/// layout of dense ones.
inline void check_strided(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_TYPE(!tensor.is_nested(), op, ": expected ", name,
                   " to be a dense tensor, but got a nested one");
  TORCH_CHECK_TYPE(tensor.layout() == at::kStrided, op, ": expected ", name,
                   " to be a dense tensor, but got layout ", tensor.layout());
}

/// For tensors that are written to: elements that share memory would be written twice.
inline void check_no_overlap(const char* op, const char* name, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, op, ": expected ",
                    name, " to have memory of its own for each element, because it is written ",
                    "to, but got strides ", tensor.sym_strides());
}

inline void check_floating(const char* op, const char* name, const at::Tensor& tensor) {
  check_defined(op, name, tensor);
  TORCH_CHECK_TYPE(at::isFloatingType(tensor.scalar_type()), op, ": expected ", name,
                   " to be floating point, but got ", tensor.scalar_type());
  check_strided(op, name, tensor);
}

/// For the inputs of modules, of which some compute by operators of torch: it has none in float8.
inline void check_input_floating(const char* op, const char* name, const at::Tensor& tensor) {
  check_floating(op, name, tensor);
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK_TYPE(
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kHalf || dtype == at::kBFloat16,
      op, ": expected ", name, " to be float16, bfloat16, float32 or float64, but got ", dtype);
}

inline void check_dtype(const char* op, const char* name, const at::Tensor& tensor,
                        at::ScalarType dtype) {
  check_defined(op, name, tensor);
  TORCH_CHECK_TYPE(tensor.scalar_type() == dtype, op, ": expected ", name, " to be ", dtype,
                   ", but got ", tensor.scalar_type());
  check_strided(op, name, tensor);
}

/// `shape` names the axes in the message, for example "(H, N, D)".
inline void check_rank(const char* op, const char* name, const at::Tensor& tensor, int64_t rank,
                       const char* shape) {
  check_defined(op, name, tensor);
  TORCH_CHECK_VALUE(tensor.dim() == rank, op, ": expected ", name, " to have ", rank,
                    " dimensions ", shape, ", but got shape ", tensor.sym_sizes());
}

inline void check_same_device(const char* op, const char* a_name, const at::Tensor& a,
                              const char* b_name, const at::Tensor& b) {
  check_defined(op, a_name, a);
  check_defined(op, b_name, b);
  TORCH_CHECK(a.device() == b.device(), op, ": expected ", a_name, " and ", b_name,
              " to be on the same device, but got ", a_name, " on ", a.device(), " and ", b_name,
              " on ", b.device());
}

/// Sizes may be symbolic while tracing, hence SymInt.
inline void check_size(const char* op, const char* name, const at::Tensor& tensor, int64_t axis,
                       const c10::SymInt& size, const char* meaning) {
  TORCH_CHECK_VALUE(tensor.sym_size(axis) == size, op, ": expected ", name, " to have size ", size,
                    " (", meaning, ") on axis ", axis, ", but got shape ", tensor.sym_sizes());
}

}  // namespace torchvq::detail
