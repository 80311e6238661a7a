#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torchvq/fit/evaluate_codebook.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/unit_vectors.h>

#include <algorithm>

#include "fit/add_over_group_.h"
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
  const auto size = codebook.size(0);
  EvaluateCodebookOutput output;
  output.counts = at::zeros({size}, at::kLong);
  for (int64_t first = 0; first < vectors.rows; first += vectors.block_rows) {
    const auto count = std::min(vectors.block_rows, vectors.rows - first);
    auto block = functional::read_block(vectors, first);
    if (cosine) block = ops::unit_vectors(block);
    const auto nearest = ops::nearest_code(block, codebook, options);
    output.counts += nearest.indices.bincount({}, size);
    output.error.add(block, nearest.codes);
    if (progress) progress(first + count);
  }
  const distributed::Group group(vectors.shard.group_name, {"evaluate_codebook", {}});
  add_over_group_(group, output.counts, output.error);
  return output;
}

}  // namespace torchvq::fit
