// Shared by all kernels of prepare_codes and by the operators that use its results.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

namespace torchvq::detail {

void check_prepare_codes(const at::Tensor& codebook);

/// Shape of the result: (bytes,) or (H, bytes).
std::vector<c10::SymInt> prepared_sizes(const at::Tensor& codebook);

/// Checks that `prepared` has the shape of a copy of each codebook.
void check_prepared(const char* op, at::TensorList prepared, at::TensorList codebooks);

}  // namespace torchvq::detail
