// Shared by all kernels of extend_paths: argument checks and dimensions.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <c10/core/SymInt.h>

namespace torchvq::detail {

/// Residual, decoded, score, indices.
using PathTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

void check_extend_paths(const at::Tensor& residual, const at::Tensor& decoded,
                        const at::Tensor& score, const at::Tensor& indices, const at::Tensor& codes,
                        int64_t beam, const std::optional<at::Tensor>& candidates,
                        std::optional<double> weight);

/// Empty tensors for the extended paths.
PathTensors new_paths(const at::Tensor& residual, const at::Tensor& score,
                      const at::Tensor& indices, const at::Tensor& codes, int64_t beam);

}  // namespace torchvq::detail
