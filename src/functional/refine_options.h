// Checks of refine_codebooks().
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/refine_codebooks.h>

namespace torchvq::functional {

/// Throws for codebooks and options that refine_codebooks() does not support.
void check_refine(int64_t dim, at::TensorList codebooks, const RefineCodebooksOptions& options);

/// Throws if `rows`, the number of vectors of all processes, is too small.
void check_rows(int64_t rows, at::TensorList codebooks, const RefineCodebooksOptions& options);

/// A readable description of everything that must be the same on all ranks.
std::string description_of(at::TensorList codebooks, const RefineCodebooksOptions& options);

/// Number of refits whose search uses noise.
int64_t annealed_refits(const RefineCodebooksOptions& options);

}  // namespace torchvq::functional
