// Shared by all kernels of nearest_code: argument checks and the common shape for computation.
#pragma once

#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

#include "detail/precision.h"

namespace torchvq::detail {

using NearestCodeTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

void check_nearest_code(const at::Tensor& x, const at::Tensor& codebook, std::string_view metric,
                        const std::optional<at::Tensor>& bias, std::optional<int64_t> topk,
                        const std::optional<at::Tensor>& mask);

/// Throws if x has no features; for all operators that search.
void check_has_dim(const char* op, const at::Tensor& x);

/// Writes the results of padding to those of a search that has ignored the mask.
void fill_padding_of(NearestCodeTensors& found, const std::optional<at::Tensor>& mask,
                     std::optional<int64_t> topk);

/// Shape of indices: that of x without its last axis, followed by k if topk is given.
c10::SymDimVector nearest_code_shape(const at::Tensor& x, std::optional<int64_t> topk);
/// The same for kernels, which know the sizes.
std::vector<int64_t> nearest_code_sizes(const at::Tensor& x, std::optional<int64_t> topk);

/// Checked arguments in the dtype of the computation: `heads` problems of `tokens` rows each. If
/// neither codebook nor bias has a head axis, all rows form one problem (heads == 1).
struct NearestCodeProblem {
  NearestCodeProblem(const at::Tensor& x, const at::Tensor& codebook, std::string_view metric,
                     const std::optional<at::Tensor>& bias, std::optional<int64_t> topk,
                     const std::optional<at::Tensor>& mask = std::nullopt);

  at::Tensor x;         ///< (heads, tokens, D), contiguous
  at::Tensor codebook;  ///< (heads or 1, K, D), contiguous
  at::Tensor bias;      ///< (heads or 1, K), contiguous, or undefined
  at::Tensor mask;      ///< (heads, tokens), contiguous, or undefined
  bool cosine = false;
  int64_t heads = 0, tokens = 0, dim = 0, size = 0, k = 1;
  at::ScalarType dtype = at::kFloat;

  at::Tensor head_codebook(int64_t head) const;
  at::Tensor head_bias(int64_t head) const;  ///< undefined without a bias
  /// The problem of some tokens of a head, without a mask.
  NearestCodeProblem of_rows(int64_t head, std::vector<int64_t>& rows) const;
};

}  // namespace torchvq::detail
