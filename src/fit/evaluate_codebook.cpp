#include <ATen/ops/empty.h>
#include <torchvq/fit/evaluate_codebook.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/unit_vectors.h>

#include "fit/evaluate_blocks.h"
#include "functional/read_block.h"

namespace torchvq::fit {

EvaluateCodebookOutput evaluate_codebook(const functional::VectorBlocks& vectors,
                                         const at::Tensor& codebook_, const std::string& metric,
                                         const std::function<void(int64_t rows)>& progress) {
  const bool cosine = metric == "cosine";
  const auto options = ops::NearestCodeOptions().metric(metric).return_codes(true);
  functional::check_blocks("evaluate_codebook", vectors);
  // Checks the arguments, also where there are no rows.
  ops::nearest_code(at::empty({0, vectors.dim}), codebook_, options);
  const auto codebook = cosine ? ops::unit_vectors(codebook_) : codebook_;
  const auto quantize = [&](const at::Tensor& block) -> EvaluatedBlock {
    const auto x = cosine ? ops::unit_vectors(block) : block;
    const auto nearest = ops::nearest_code(x, codebook, options);
    return {x, nearest.indices.unsqueeze(1), nearest.codes};
  };
  const auto found =
      evaluate_blocks("evaluate_codebook", vectors, {codebook.size(0)}, quantize, progress);
  return {found.counts[0], found.error};
}

}  // namespace torchvq::fit
