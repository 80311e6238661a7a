// Decoding: codes of the indices that a forward returned.
#pragma once

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// Sets to zero what was decoded from nothing, after a projection whose bias changed it.
///
/// @param output   (*, D).
/// @param indices  (*, ...), integer: a row is zero where all its indices are below 0.
/// @return         (*, D). `output` itself where no row is, if the values can be read without
///                 waiting for a device, outside of compilers and transforms.
///
/// Throws          c10::ValueError for other shapes.
TORCHVQ_API at::Tensor zero_absent(const at::Tensor& output, const at::Tensor& indices);

/// Codes of the indices of one codebook per head, or of one for all heads.
///
/// @param codebook  (H, K, D), H = heads if `separate`, else 1.
/// @param indices   int64, (*), with several heads (*, heads); -1 gives zeros.
/// @param affine    none, or mean and variance (H, 1, D) of the data and of the codes: codes are
///                  mapped as by affine_codes(), with the same bits.
/// @return          (*, heads * D).
///
/// Gradient         to codebook: the sum of the gradients of each code's tokens, in token order.
/// Throws           c10::IndexError for an index outside [-1, K) (on CPU).
TORCHVQ_API at::Tensor decode_indices(const at::Tensor& codebook, const at::Tensor& indices,
                                      int64_t heads = 1, bool separate = false,
                                      at::TensorList affine = {});

/// The sum of the codes of all levels, as ops::residual_decode().
///
/// @param indices    int64, (*, q), with several heads (*, heads, q).
/// @param codebooks  q of (H, K_n, D).
/// @param affine     none, or four tensors for each level, as for decode_indices().
/// @return           (*, heads * D).
TORCHVQ_API at::Tensor decode_residual(const at::Tensor& indices, at::TensorList codebooks,
                                       int64_t heads = 1, bool separate = false,
                                       at::TensorList affine = {});

}  // namespace torchvq::functional
