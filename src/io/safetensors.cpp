#include <torchvq/io/safetensors.h>

#include <utility>

#include "io/array_layout.h"
#include "io/input_file.h"
#include "io/read_tensor.h"
#include "io/safetensors_header.h"

namespace torchvq::io {
namespace {

// Names come from the file, while a message must be one line of bounded length.
std::string list_names(const std::map<std::string, SafetensorsEntry>& entries) {
  constexpr size_t kMost = 8;
  std::string text;
  size_t listed = 0;
  for (const auto& [name, entry] : entries) {
    if (listed == kMost) return text + ", ... (" + std::to_string(entries.size()) + " in all)";
    text += (listed++ == 0 ? "" : ", ") + name;
  }
  return entries.empty() ? "no tensors" : text;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(std::make_unique<InputFile>(path)) {
  auto header = read_safetensors_header(*file_);
  entries_ = std::move(header.entries);
  metadata_ = std::move(header.metadata);
}

SafetensorsFile::~SafetensorsFile() = default;

const SafetensorsEntry& SafetensorsFile::entry(const std::string& name) const {
  const auto found = entries_.find(name);
  TORCH_CHECK_VALUE(found != entries_.end(), file_->path(), ": expected a tensor named '", name,
                    "', but it holds ", list_names(entries_));
  return found->second;
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const auto& found = entry(name);
  return read_array(*file_, ArrayLayout{found.dtype, found.shape, false, false, found.begin});
}

}  // namespace torchvq::io
