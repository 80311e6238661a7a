#include "fit/residual_blocks.h"
#include "functional/read_block.h"

#include <ATen/TensorOperators.h>
#include <torchvq/ops/nearest_code.h>

namespace torchvq::fit {
namespace {

at::Tensor residual_of(const at::Tensor& x, const at::Tensor& codebook) {
  const auto options = ops::NearestCodeOptions().return_codes(true);
  return x - ops::nearest_code(x, codebook, options).codes;
}

}  // namespace

ResidualBlocks::ResidualBlocks(const functional::VectorBlocks& vectors, int64_t first_dim,
                               int64_t dim, int64_t memory)
    : vectors_(vectors), first_dim_(first_dim), dim_(dim) {
  const auto row_bytes = dim * static_cast<int64_t>(sizeof(float));
  if (vectors.rows > memory / row_bytes) return;
  kept_.resize(static_cast<size_t>((vectors.rows + vectors.block_rows - 1) / vectors.block_rows));
}

functional::VectorBlocks ResidualBlocks::blocks() {
  auto blocks = vectors_;
  blocks.dim = dim_;
  blocks.read = [this](int64_t first, int64_t /*count*/) { return read(first); };
  return blocks;
}

at::Tensor ResidualBlocks::read(int64_t first) {
  auto* kept = kept_.empty() ? nullptr : &kept_[static_cast<size_t>(first / vectors_.block_rows)];
  if (kept != nullptr && kept->defined()) return *kept;
  auto block = functional::read_block(vectors_, first);
  if (dim_ < vectors_.dim) block = block.narrow(1, first_dim_, dim_).contiguous();
  for (const auto& codebook : levels_) block = residual_of(block, codebook);
  if (kept != nullptr) *kept = block;
  return block;
}

void ResidualBlocks::subtract(const at::Tensor& codebook) {
  levels_.push_back(codebook);
  for (auto& block : kept_) {
    if (block.defined()) block = residual_of(block, codebook);
  }
}

}  // namespace torchvq::fit
