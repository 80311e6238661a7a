// What all kernels of prepare_codes share, and the operators that take its results.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

namespace torchvq::detail {

void check_prepare_codes(const at::Tensor& codebook);

/// Of the result: (bytes,) or (H, bytes).
std::vector<c10::SymInt> prepared_sizes(const at::Tensor& codebook);

/// Whether `prepared` has the form of a copy of each codebook.
void check_prepared(const char* op, at::TensorList prepared, at::TensorList codebooks);

}  // namespace torchvq::detail
