#include <torchvq/io/safetensors.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "detail/checks.h"
#include "io/safetensors_dtypes.h"

namespace torchvq::io {
namespace {

using Item = std::pair<std::string, at::Tensor>;

// Widest elements first, so that every tensor is aligned to its element; then by name.
std::vector<Item> in_file_order(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<Item> items(tensors.begin(), tensors.end());
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    return std::forward_as_tuple(b.second.element_size(), a.first) <
           std::forward_as_tuple(a.second.element_size(), b.first);
  });
  return items;
}

nlohmann::ordered_json describe(const Item& item, int64_t begin) {
  const auto& [name, tensor] = item;
  const auto dtype = safetensors_name(tensor.scalar_type());
  TORCH_CHECK_VALUE(name != "__metadata__",
                    "save_safetensors: expected tensors to be named otherwise than __metadata__");
  TORCH_CHECK_TYPE(!dtype.empty(), "save_safetensors: expected '", name,
                   "' to have a dtype that safetensors files can hold, but got ",
                   tensor.scalar_type());
  detail::check_strided("save_safetensors", ("'" + name + "'").c_str(), tensor);
  return {{"dtype", dtype},
          {"shape", tensor.sizes().vec()},
          {"data_offsets", {begin, begin + static_cast<int64_t>(tensor.nbytes())}}};
}

std::string make_header(const std::vector<Item>& items,
                        const std::map<std::string, std::string>& metadata) {
  // Written entry by entry: an ordered object looks through all of its keys for every new one.
  std::string text = "{";
  const auto add = [&](const std::string& name, const nlohmann::ordered_json& value) {
    if (text.size() > 1) text += ',';
    text += nlohmann::ordered_json(name).dump() + ":" + value.dump();
  };
  try {
    if (!metadata.empty()) add("__metadata__", metadata);
    int64_t begin = 0;
    for (const auto& item : items) {
      add(item.first, describe(item, begin));
      begin += static_cast<int64_t>(item.second.nbytes());
    }
  } catch (const nlohmann::json::exception&) {
    TORCH_CHECK_VALUE(false, "save_safetensors: expected names and metadata to be UTF-8");
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

}  // namespace

void save_safetensors(OutputFile& file, const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  const auto items = in_file_order(tensors);
  const auto header = make_header(items, metadata);
  std::array<unsigned char, 8> length{};
  for (size_t i = 0; i < length.size(); ++i)
    length[i] = static_cast<unsigned char>(header.size() >> (8 * i));
  file.write(length.data(), length.size());
  file.write(header.data(), header.size());
  for (const auto& [name, tensor] : items) {
    // A view may hold the negative of its values, and say so in a bit that `contiguous` keeps.
    const auto data = tensor.cpu().resolve_neg().contiguous();
    file.write(data.const_data_ptr(), data.nbytes());
  }
  file.commit();
}

void save_safetensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  OutputFile file(path);
  save_safetensors(file, tensors, metadata);
}

}  // namespace torchvq::io
