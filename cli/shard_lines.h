// Descriptions that processes exchange before they work together, as rows of one tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace torchvq::cli {

/// The description of this process: sizes that must fit together.
struct ShardNote {
  int64_t rows = 0;
  int64_t dim = 0;
  std::string command;  // in readable form; the same on all processes
};

// Words of a line, int64: whether the process is ready, rows, dim, and its command as bytes.
constexpr int64_t kReady = 0, kRows = 1, kDim = 2, kText = 3;
constexpr int64_t kTextBytes = 1000;
constexpr int64_t kLineWords = kText + kTextBytes / static_cast<int64_t>(sizeof(int64_t));

/// The row of a process. Of a command that is too long, the start and a hash of all of it.
at::Tensor line_of(const ShardNote& note, bool ready);

/// The command in a line, which may lack the terminating zero.
std::string text_of(const at::Tensor& line);

}  // namespace torchvq::cli
