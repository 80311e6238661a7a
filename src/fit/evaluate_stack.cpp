#include <ATen/ops/empty.h>
#include <torchvq/fit/evaluate_stack.h>
#include <torchvq/ops/unit_vectors.h>

#include "fit/evaluate_blocks.h"
#include "functional/read_block.h"

namespace torchvq::fit {

Evaluation evaluate_stack(const functional::VectorBlocks& vectors, const CodebookStack& stack_,
                          int64_t beam, const std::function<void(int64_t rows)>& progress) {
  functional::check_blocks("evaluate_stack", vectors);
  // Checks the arguments, also where there are no rows.
  encode_stack(at::empty({0, vectors.dim}), stack_, beam);
  const bool cosine = stack_.metric == "cosine";
  auto stack = stack_;
  std::vector<int64_t> sizes;
  for (auto& group : stack.groups) {
    for (auto& codebook : group) {
      if (cosine) codebook = ops::unit_vectors(codebook);
      sizes.push_back(codebook.size(0));
    }
  }
  const auto quantize = [&](const at::Tensor& block) -> EvaluatedBlock {
    const auto x = cosine ? ops::unit_vectors(block) : block;
    const auto codes = encode_stack(x, stack, beam);
    return {x, codes, decode_stack(codes, stack)};
  };
  return evaluate_blocks("evaluate_stack", vectors, sizes, quantize, progress);
}

}  // namespace torchvq::fit
