// Levels of a residual stack, each with a codebook of its own.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace torchvq::distributed {

struct Levels {
  at::TensorList x;
  at::TensorList mask;

  [[nodiscard]] size_t size() const { return x.size(); }
  [[nodiscard]] std::optional<at::Tensor> mask_of(size_t level) const {
    if (mask.empty()) return std::nullopt;
    return mask[mask.size() == 1 ? 0 : level];
  }
};

inline void check_levels(const char* op, const Levels& levels, size_t codebooks_count) {
  TORCH_CHECK_VALUE(levels.size() >= 1, op, ": expected x to hold at least 1 level, but got none");
  TORCH_CHECK_VALUE(levels.mask.size() <= 1 || levels.mask.size() == levels.size(), op,
                    ": expected mask to hold none, one, or ", levels.size(), " tensors, but got ",
                    levels.mask.size());
  TORCH_CHECK_VALUE(codebooks_count == levels.size(), op, ": expected ", levels.size(),
                    " codebooks (levels of x), but got ", codebooks_count);
}

}  // namespace torchvq::distributed
