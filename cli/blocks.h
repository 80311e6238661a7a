// Reads vectors from a file in blocks, within a memory budget.
#pragma once

#include <torchvq/fit/fit_codebook.h>
#include <torchvq/io/array_source.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torchvq::cli {

constexpr int64_t kDefaultMemory = int64_t{1} << 30;

/// Bytes of a row of float32 vectors, at most the largest number; at least those of one element.
int64_t row_bytes_of(int64_t vectors, int64_t dim);

/// Rows per block: a small part of the budget, because processing a block makes copies of it.
int64_t choose_block_rows(int64_t row_bytes, int64_t memory);

class BlockReader {
 public:
  /// Keeps the vectors in memory if they fit into `memory` bytes as float32; otherwise reads
  /// them again in every pass.
  BlockReader(const std::string& path, const std::string& key, int64_t memory);

  /// Reads slice `part` of `parts` equal slices instead of all rows. With `keep` false, reads the
  /// file again in every pass, regardless of memory.
  BlockReader(const std::string& path, const std::string& key, int64_t memory, int64_t part,
              int64_t parts, bool keep);

  const io::VectorSource& source() const { return source_; }
  int64_t rows() const { return rows_; }
  int64_t dim() const { return source_.dim(); }
  bool streams() const { return streams_; }

  at::Tensor read(int64_t first, int64_t count);

  /// Calls work(first, block) for all blocks in order, each read once and not kept.
  template <typename Work>
  void for_each(Work&& work) const {
    for (int64_t first = 0; first < rows(); first += block_rows_) {
      work(first, source_.read(first_row_ + first, std::min(block_rows_, rows() - first)));
    }
  }

  functional::VectorBlocks blocks();

 private:
  io::VectorSource source_;
  int64_t first_row_;
  int64_t rows_;
  int64_t block_rows_;
  bool streams_;
  std::vector<at::Tensor> kept_;
};

/// Throws c10::ValueError unless the vectors have the codebook's dimension.
void check_dim(const io::VectorSource& vectors, int64_t dim, const std::string& codec_path);

}  // namespace torchvq::cli
