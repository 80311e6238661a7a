#include "shard_lines.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

namespace torchvq::cli {

at::Tensor line_of(const ShardNote& note, bool ready) {
  auto line = at::zeros({kLineWords}, at::kLong);
  auto* word = line.mutable_data_ptr<int64_t>();
  word[kReady] = ready ? 1 : 0;
  word[kRows] = note.rows;
  word[kDim] = note.dim;
  std::memcpy(word + kText, note.options.data(),
              std::min<size_t>(note.options.size(), kTextBytes - 1));
  return line;
}

std::string text_of(const at::Tensor& line) {
  const auto* text = reinterpret_cast<const char*>(line.const_data_ptr<int64_t>() + kText);
  return {text, ::strnlen(text, kTextBytes)};
}

}  // namespace torchvq::cli
