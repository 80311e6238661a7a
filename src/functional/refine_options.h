// Checks of refine_codebooks().
#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/functional/refine_codebooks.h>

namespace torchvq::functional {

/// Throws for codebooks and options that refine_codebooks() does not take.
void check_refine(int64_t dim, at::TensorList codebooks, const RefineCodebooksOptions& options);

/// Throws where `rows` vectors, of all processes, are too few.
void check_rows(int64_t rows, at::TensorList codebooks, const RefineCodebooksOptions& options);

/// What ranks must have in common, for a person to read.
std::string description_of(at::TensorList codebooks, const RefineCodebooksOptions& options);

/// How many of the refits are searched with noise.
int64_t annealed_refits(const RefineCodebooksOptions& options);

}  // namespace torchvq::functional
