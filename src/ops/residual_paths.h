// The paths of a beam search, as extend_paths() takes and returns them.
#pragma once

#include <algorithm>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <torchvq/ops/extend_paths.h>

namespace torchvq::detail {

/// The path of no levels, for tokens x (H, T, D).
inline ops::ResidualPaths first_paths(const at::Tensor& x) {
  const auto residual = x.unsqueeze(2);
  const auto options = residual.options();
  return {residual, at::zeros_like(residual),
          at::zeros({x.size(0), x.size(1), 1}, options.dtype(at::kDouble)),
          at::empty({x.size(0), x.size(1), 1, 0}, options.dtype(at::kLong))};
}

/// The paths of `count` tokens from `begin`.
inline ops::ResidualPaths paths_of_tokens(const ops::ResidualPaths& paths, int64_t begin,
                                          int64_t count) {
  return {paths.residual.narrow(1, begin, count), paths.decoded.narrow(1, begin, count),
          paths.score.narrow(1, begin, count), paths.indices.narrow(1, begin, count)};
}

/// The paths of all tokens from those of consecutive ones.
inline ops::ResidualPaths joined_paths(const std::vector<ops::ResidualPaths>& parts) {
  if (parts.size() == 1) return parts[0];
  const auto joined = [&](at::Tensor ops::ResidualPaths::* field) {
    std::vector<at::Tensor> tensors;
    for (const auto& part : parts) tensors.push_back(part.*field);
    return at::cat(tensors, 1);
  };
  return {joined(&ops::ResidualPaths::residual), joined(&ops::ResidualPaths::decoded),
          joined(&ops::ResidualPaths::score), joined(&ops::ResidualPaths::indices)};
}

/// Extends the paths of at most `step` tokens at a time, by extend(paths, first token).
template <typename Extend>
ops::ResidualPaths extend_in_blocks(const ops::ResidualPaths& paths, int64_t step,
                                    const Extend& extend) {
  const int64_t tokens = paths.score.size(1);
  std::vector<ops::ResidualPaths> parts;
  int64_t begin = 0;
  do {
    const int64_t count = std::min(step, tokens - begin);
    parts.push_back(extend(paths_of_tokens(paths, begin, count), begin));
    begin += count;
  } while (begin < tokens);
  return joined_paths(parts);
}

}  // namespace torchvq::detail
