#include "shard_lines.h"

#include <ATen/ops/zeros.h>

#include <cstring>

#include "sha256.h"

namespace torchvq::cli {
namespace {

std::string shortened(const std::string& text) {
  if (text.size() < kTextBytes) return text;
  constexpr auto kDigits = "0123456789abcdef";
  std::string hash;
  for (const auto byte : sha256(text)) hash.append({kDigits[byte >> 4], kDigits[byte & 15]});
  const std::string gap = "... SHA-256 ";
  return text.substr(0, kTextBytes - 1 - gap.size() - hash.size()) + gap + hash;
}

}  // namespace

at::Tensor line_of(const ShardNote& note, bool ready) {
  auto line = at::zeros({kLineWords}, at::kLong);
  auto* word = line.mutable_data_ptr<int64_t>();
  word[kReady] = ready ? 1 : 0;
  word[kRows] = note.rows;
  word[kDim] = note.dim;
  const auto text = shortened(note.command);
  std::memcpy(word + kText, text.data(), text.size());
  return line;
}

std::string text_of(const at::Tensor& line) {
  const auto* text = reinterpret_cast<const char*>(line.const_data_ptr<int64_t>() + kText);
  return {text, ::strnlen(text, kTextBytes)};
}

}  // namespace torchvq::cli
