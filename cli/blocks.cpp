#include "blocks.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

namespace torchvq::cli {
namespace {

constexpr int64_t kMostBlockRows = 65536;
constexpr int64_t kBlocksPerBudget = 16;

}  // namespace

int64_t row_bytes_of(int64_t vectors, int64_t dim) {
  int64_t bytes = sizeof(float);
  const bool overflows = __builtin_mul_overflow(bytes, std::max<int64_t>(vectors, 1), &bytes) ||
                         __builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes);
  return overflows ? std::numeric_limits<int64_t>::max() : bytes;
}

int64_t choose_block_rows(int64_t row_bytes, int64_t memory) {
  return std::clamp<int64_t>(memory / kBlocksPerBudget / row_bytes, 1, kMostBlockRows);
}

BlockReader::BlockReader(const std::string& path, const std::string& key, int64_t memory)
    : BlockReader(path, key, memory, 0, 1, true) {}

BlockReader::BlockReader(const std::string& path, const std::string& key, int64_t memory,
                         int64_t part, int64_t parts, bool keep)
    : source_(path, key),
      first_row_(source_.rows() / parts * part + std::min(part, source_.rows() % parts)),
      rows_(source_.rows() / parts + (part < source_.rows() % parts ? 1 : 0)) {
  const auto row_bytes = row_bytes_of(1, dim());
  block_rows_ = choose_block_rows(row_bytes, memory);
  streams_ = rows() > memory / row_bytes;
  if (!streams_ && keep)
    kept_.resize(static_cast<size_t>((rows() + block_rows_ - 1) / block_rows_));
}

at::Tensor BlockReader::read(int64_t first, int64_t count) {
  if (kept_.empty()) return source_.read(first_row_ + first, count);
  auto& kept = kept_[static_cast<size_t>(first / block_rows_)];
  if (!kept.defined()) kept = source_.read(first_row_ + first, count);
  return kept;
}

functional::VectorBlocks BlockReader::blocks() {
  functional::VectorBlocks blocks;
  blocks.rows = rows();
  blocks.dim = dim();
  blocks.block_rows = block_rows_;
  blocks.read = [this](int64_t first, int64_t count) { return read(first, count); };
  return blocks;
}

void check_dim(const io::VectorSource& vectors, int64_t dim, const std::string& codec_path) {
  TORCH_CHECK_VALUE(vectors.dim() == dim, vectors.array().path(),
                    ": expected vectors of dimension ", dim, ", as in ", codec_path, ", but got ",
                    vectors.dim());
}

}  // namespace torchvq::cli
