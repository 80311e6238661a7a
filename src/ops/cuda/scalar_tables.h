// Tables of levels for the CUDA kernels of scalar quantizers, if they fit a launch.
#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include <ATen/core/Tensor.h>

#include "detail/scalar_levels.h"
#include "kernels/cuda/scalar_tables.h"

namespace torchvq::detail {

/// Empty if the different numbers of levels together have more than kMostChanges changes.
template <typename T>
std::optional<kernels::ScalarTables<T>> scalar_tables(at::IntArrayRef levels, ScalarBound bound) {
  kernels::ScalarTables<T> tables;
  tables.features = static_cast<int32_t>(levels.size());
  tables.symmetric = is_symmetric(bound) ? 1 : 0;
  std::map<int64_t, size_t> known;
  size_t used = 0;
  for (size_t j = 0; j < levels.size(); ++j) {
    const auto [entry, is_new] = known.try_emplace(levels[j], used);
    if (is_new) {
      const auto& changes = scalar_levels<T>(levels[j], bound)->changes;
      if (used + changes.size() > kernels::kMostChanges) return std::nullopt;
      std::copy(changes.begin(), changes.end(), tables.changes + used);
      used += changes.size();
    }
    tables.first[j] = static_cast<int16_t>(entry->second);
    tables.levels[j] = static_cast<int16_t>(levels[j]);
  }
  return tables;
}

}  // namespace torchvq::detail
