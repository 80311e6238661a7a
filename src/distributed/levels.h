// Levels of a residual stack and their codebooks, which several levels may share.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

namespace torchvq::distributed {

struct Levels {
  at::TensorList x;
  at::TensorList mask;
  at::IntArrayRef codebooks;

  [[nodiscard]] size_t size() const { return x.size(); }
  [[nodiscard]] size_t codebook(size_t level) const {
    return codebooks.empty() ? level : static_cast<size_t>(codebooks[level]);
  }
  [[nodiscard]] std::optional<at::Tensor> mask_of(size_t level) const {
    if (mask.empty()) return std::nullopt;
    return mask[mask.size() == 1 ? 0 : level];
  }
  [[nodiscard]] bool shared(size_t codebooks_count) const { return codebooks_count < size(); }
};

inline void check_levels(const char* op, const Levels& levels, size_t codebooks_count) {
  TORCH_CHECK_VALUE(levels.size() >= 1, op, ": expected x to hold at least 1 level, but got none");
  TORCH_CHECK_VALUE(levels.mask.size() <= 1 || levels.mask.size() == levels.size(), op,
                    ": expected mask to hold none, one, or ", levels.size(), " tensors, but got ",
                    levels.mask.size());
  if (levels.codebooks.empty()) {
    TORCH_CHECK_VALUE(codebooks_count == levels.size(), op, ": expected ", levels.size(),
                      " codebooks (one per level of x, as codebooks is empty), but got ",
                      codebooks_count);
    return;
  }
  TORCH_CHECK_VALUE(levels.codebooks.size() == levels.size(), op, ": expected codebooks to have ",
                    levels.size(), " entries (levels of x), but got ", levels.codebooks.size());
  std::vector<bool> used(codebooks_count, false);
  for (const auto codebook : levels.codebooks) {
    TORCH_CHECK_VALUE(codebook >= 0 && codebook < static_cast<int64_t>(codebooks_count), op,
                      ": expected codebooks to be in [0, ", codebooks_count, "), but got ",
                      codebook);
    used[static_cast<size_t>(codebook)] = true;
  }
  for (size_t c = 0; c < codebooks_count; ++c) {
    TORCH_CHECK_VALUE(used[c], op,
                      ": expected every codebook to have a level, but got none for codebook ", c);
  }
}

}  // namespace torchvq::distributed
