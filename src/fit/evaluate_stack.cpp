#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torchvq/fit/evaluate_stack.h>
#include <torchvq/ops/unit_vectors.h>

#include <algorithm>

#include "fit/add_over_group_.h"
#include "functional/read_block.h"

namespace torchvq::fit {

EvaluateStackOutput evaluate_stack(const functional::VectorBlocks& vectors,
                                   const CodebookStack& stack_, int64_t beam,
                                   const std::function<void(int64_t rows)>& progress) {
  functional::check_blocks("evaluate_stack", vectors);
  // Checks the arguments, also where there are no rows.
  encode_stack(at::empty({0, vectors.dim}), stack_, beam);
  const bool cosine = stack_.metric == "cosine";
  auto stack = stack_;
  if (cosine) {
    for (auto& group : stack.groups) {
      for (auto& codebook : group) codebook = ops::unit_vectors(codebook);
    }
  }
  EvaluateStackOutput output;
  for (int64_t i = 0; i < stack.columns(); ++i) {
    output.counts.push_back(at::zeros({stack.codebook(i).size(0)}, at::kLong));
  }
  for (int64_t first = 0; first < vectors.rows; first += vectors.block_rows) {
    const auto count = std::min(vectors.block_rows, vectors.rows - first);
    auto block = functional::read_block(vectors, first);
    if (cosine) block = ops::unit_vectors(block);
    const auto codes = encode_stack(block, stack, beam);
    for (int64_t i = 0; i < stack.columns(); ++i) {
      auto& counts = output.counts[static_cast<size_t>(i)];
      counts += codes.select(1, i).bincount({}, counts.size(0));
    }
    output.error.add(block, decode_stack(codes, stack));
    if (progress) progress(first + count);
  }
  const distributed::Group group(vectors.shard.group_name, {"evaluate_stack", {}});
  auto all = at::cat(output.counts);
  add_over_group_(group, all, output.error);
  int64_t first = 0;
  for (auto& counts : output.counts) {
    counts = all.narrow(0, first, counts.size(0));
    first += counts.size(0);
  }
  return output;
}

}  // namespace torchvq::fit
