// Options of LatentQuantize. The names, meanings and defaults are those of the Python class.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <torch/arg.h>

#include <torchvq/export.h>
#include <torchvq/options/vector_quantize.h>
#include <torchvq/options/vqp_compat.h>

namespace torchvq {

/// Options of a LatentQuantize module.
///
/// Example:
/// ```
/// torchvq::LatentQuantize quantizer(torchvq::LatentQuantizeOptions({5, 5, 8}, 16));
/// ```
struct TORCHVQ_API LatentQuantizeOptions {
  /// @param levels  number of values of each feature, each 2 to 65536, product at most 2^62.
  /// @param dim     features of the input, at least 1.
  LatentQuantizeOptions(std::vector<int64_t> levels, int64_t dim)
      : levels_(std::move(levels)), dim_(dim) {}
  /// The same number of levels for each of `codebook_dim` features.
  LatentQuantizeOptions(int64_t levels, int64_t dim, int64_t codebook_dim)
      : levels_(codebook_dim > 0 ? static_cast<size_t>(codebook_dim) : 0, levels), dim_(dim) {}

  /// Throws c10::ValueError for an option out of range.
  void validate() const;

  TORCH_ARG(std::vector<int64_t>, levels);
  TORCH_ARG(int64_t, dim);
  /// Weight of the commitment loss, finite, 0 or more. Default: 0.1.
  TORCH_ARG(double, commitment_loss_weight) = 0.1;
  /// Weight of the quantization loss, finite, 0 or more. Default: 0.1.
  TORCH_ARG(double, quantization_loss_weight) = 0.1;
  /// Codes per token; they share the values. Default: 1.
  TORCH_ARG(int64_t, num_codebooks) = 1;
  /// Indices have a last axis for the codebooks. Default: if there are several.
  TORCH_ARG(std::optional<bool>, keep_num_codebooks_dim);
  /// The values are parameters; otherwise they are constants, and not part of the state. Default:
  /// true.
  TORCH_ARG(bool, optimize_values) = true;
  /// Optimizer of the values that takes a step towards the latents inside each training forward;
  /// see VectorQuantizeOptions. Default: none.
  TORCH_ARG(CodebookOptimizer, in_place_codebook_optimizer);
  /// Features on axis 1; otherwise on the last. Default: true.
  TORCH_ARG(bool, channel_first) = true;
  /// Behave as vector-quantize-pytorch: the loss compares input and output, each of its two terms
  /// pulls the side that the other should, the values learn by an in_place_codebook_optimizer
  /// alone; int32 indices, if the codebook has less than 2^31 codes. Default: set by TORCHVQ_COMPAT.
  TORCH_ARG(bool, vqp_compat) = vqp_compat_by_default();
};

}  // namespace torchvq
