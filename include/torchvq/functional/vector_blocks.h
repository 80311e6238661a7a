// Vectors that need not fit in memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace torchvq::functional {

/// The place of the rows of this process among those of all processes.
struct Shard {
  /// The processes, as SyncOptions::group_name (torchvq/distributed/sync.h). Empty: this one alone.
  std::string group_name;
  int64_t first_row = 0;   ///< rows of the processes before this one, in the order of their ranks
  int64_t total_rows = 0;  ///< rows of all processes; read only when there are several
};

/// Vectors that can be read repeatedly, in blocks of rows.
struct VectorBlocks {
  int64_t rows = 0;
  int64_t dim = 0;
  int64_t block_rows = 65536;  ///< most rows per read; affects memory and speed, never a result
  /// Rows [first, first + count) as (count, dim), float32, finite, CPU. Called with multiples of
  /// block_rows, in ascending order, and again from 0.
  std::function<at::Tensor(int64_t first, int64_t count)> read;
  Shard shard = {};

  /// Rows of all processes.
  int64_t all_rows() const { return shard.group_name.empty() ? rows : shard.total_rows; }
};

}  // namespace torchvq::functional
