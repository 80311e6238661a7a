#include "io/safetensors_header.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "io/array_layout.h"
#include "io/safetensors_dtypes.h"

namespace torchvq::io {
namespace {

using nlohmann::json;

constexpr int64_t kLengthBytes = 8;
// The bound of the format's reference implementation.
constexpr uint64_t kLongestSafetensorsHeader = 100'000'000;

uint64_t header_length(const InputFile& file) {
  std::array<unsigned char, kLengthBytes> bytes{};
  TORCH_CHECK_VALUE(file.read(0, bytes.data(), bytes.size()) == bytes.size(), file.path(),
                    ": expected a safetensors file, but it ends after ", file.size(), " bytes");
  uint64_t length = 0;
  for (size_t i = bytes.size(); i-- > 0;) length = length << 8 | bytes[i];
  return length;
}

std::string header_text(const InputFile& file) {
  const auto length = header_length(file);
  // The first bytes of other files give an implausible length.
  TORCH_CHECK_VALUE(length <= kLongestSafetensorsHeader, file.path(),
                    ": expected a safetensors file, with a header of at most ",
                    kLongestSafetensorsHeader, " bytes, but its first bytes claim ", length);
  TORCH_CHECK_VALUE(static_cast<int64_t>(length) <= file.size() - kLengthBytes, file.path(),
                    ": expected a safetensors header of ", length,
                    " bytes, but the file ends after ", file.size());
  std::string text(length, '\0');
  const auto got = file.read(kLengthBytes, text.data(), text.size());
  TORCH_CHECK_VALUE(
      got == text.size() && !text.empty() && text[0] == '{', file.path(),
      ": expected a safetensors header, which begins with '{', but it begins otherwise");
  return text;
}

// Visits the text before it becomes a tree: rejects a key that occurs twice in one object, of which
// the parser would silently take the last value, and nesting that no header has and that could
// exhaust memory. The parser's own callback is no substitute: it looks through a whole object
// whenever one of its values ends.
class HeaderCheck : public json::json_sax_t {
 public:
  explicit HeaderCheck(const std::string& path) : path_(path) {}

  bool start_object(size_t /*elements*/) override {
    open();
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool start_array(size_t /*elements*/) override {
    open();
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool key(std::string& name) override {
    TORCH_CHECK_VALUE(open_.back().insert(name).second, path_,
                      ": expected each name once in the safetensors header, but '", name,
                      "' occurs twice");
    return true;
  }

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(int64_t /*value*/) override { return true; }
  bool number_unsigned(uint64_t /*value*/) override { return true; }
  bool number_float(double /*value*/, const std::string& /*text*/) override { return true; }
  bool string(std::string& /*value*/) override { return true; }
  bool binary(json::binary_t& /*value*/) override { return true; }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const json::exception& /*error*/) override {
    return false;
  }

 private:
  void open() {
    // A table of tensors, each a table of fields, some of which are lists.
    constexpr size_t kDeepest = 3;
    TORCH_CHECK_VALUE(open_.size() < kDeepest, path_,
                      ": expected the safetensors header to be a table of tensors, but it "
                      "nests deeper");
    open_.emplace_back();
  }

  const std::string& path_;
  std::vector<std::set<std::string>> open_;  // the keys so far, of each open object
};

json parse_header(const std::string& path, const std::string& text) {
  HeaderCheck check(path);
  // The parser takes a zero byte for the end of the text: any bytes could hide behind it.
  const bool is_text = text.find('\0') == std::string::npos;
  TORCH_CHECK_VALUE(is_text && json::sax_parse(text, &check), path,
                    ": expected the safetensors header to be JSON, but it is damaged");
  return json::parse(text);
}

std::map<std::string, std::string> parse_metadata(const std::string& path, const json& value) {
  std::map<std::string, std::string> metadata;
  TORCH_CHECK_VALUE(value.is_object(), path, ": expected __metadata__ to map strings to strings");
  for (const auto& [key, text] : value.items()) {
    TORCH_CHECK_VALUE(text.is_string(), path,
                      ": expected __metadata__ to map strings to strings, but '", key,
                      "' does not");
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

int64_t parse_size(const json& value) {
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= uint64_t{INT64_MAX};
  return fits ? value.get<int64_t>() : -1;
}

std::vector<int64_t> parse_sizes(const std::string& path, const std::string& name,
                                 const json& entry, const char* field) {
  std::vector<int64_t> sizes;
  const auto found = entry.find(field);
  const bool is_list = found != entry.end() && found->is_array();
  if (is_list) std::transform(found->begin(), found->end(), std::back_inserter(sizes), parse_size);
  TORCH_CHECK_VALUE(is_list && std::find(sizes.begin(), sizes.end(), -1) == sizes.end(), path,
                    ": expected ", field, " of '", name, "' to be a list of whole numbers");
  return sizes;
}

SafetensorsEntry parse_entry(const std::string& path, const std::string& name, const json& entry) {
  TORCH_CHECK_VALUE(entry.is_object() && entry.contains("dtype") && entry["dtype"].is_string(),
                    path, ": expected '", name, "' to have a dtype, a shape and data_offsets");
  const auto& dtype_name = entry["dtype"].get_ref<const std::string&>();
  const auto dtype = safetensors_dtype(dtype_name);
  TORCH_CHECK_TYPE(dtype.has_value(), path, ": expected '", name,
                   "' to have a known dtype, but got ", dtype_name);
  auto shape = parse_sizes(path, name, entry, "shape");
  const auto offsets = parse_sizes(path, name, entry, "data_offsets");
  TORCH_CHECK_VALUE(offsets.size() == 2 && offsets[0] <= offsets[1], path,
                    ": expected data_offsets of '", name, "' to be [begin, end]");
  TORCH_CHECK_VALUE(shape.size() <= kMostAxes, path, ": expected '", name, "' to have at most ",
                    kMostAxes, " axes, but got ", shape.size());
  const auto element = static_cast<int64_t>(c10::elementSize(*dtype));
  const auto numel = checked_numel(shape, element);
  TORCH_CHECK_VALUE(numel >= 0 && numel * element == offsets[1] - offsets[0], path, ": expected '",
                    name, "' of shape ", shape_string(shape),
                    " to fill its data_offsets, but they hold ", offsets[1] - offsets[0], " bytes");
  return {*dtype, std::move(shape), offsets[0], offsets[1]};
}

// The format requires that the tensors fill the data without gaps or overlaps, so that no
// bytes can hide between them.
void check_coverage(const InputFile& file, const std::map<std::string, SafetensorsEntry>& entries,
                    int64_t data) {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, entry] : entries) ranges.emplace_back(entry.begin, entry.end);
  std::sort(ranges.begin(), ranges.end());
  int64_t reached = 0;
  for (const auto& [begin, end] : ranges) {
    TORCH_CHECK_VALUE(begin == reached, file.path(),
                      ": expected tensors to follow each other in the data, but they overlap or "
                      "leave a gap at byte ",
                      std::min(begin, reached));
    reached = end;
  }
  TORCH_CHECK_VALUE(reached == file.size() - data, file.path(), ": expected ", reached,
                    " bytes of data, but the file holds ", file.size() - data);
}

}  // namespace

bool looks_like_safetensors(const InputFile& file) {
  char brace = 0;
  return file.size() > kLengthBytes && header_length(file) <= kLongestSafetensorsHeader &&
         file.read(kLengthBytes, &brace, 1) == 1 && brace == '{';
}

SafetensorsHeader read_safetensors_header(const InputFile& file) {
  const auto text = header_text(file);
  const auto parsed = parse_header(file.path(), text);
  SafetensorsHeader header;
  for (const auto& [name, value] : parsed.items()) {
    if (name == "__metadata__") {
      header.metadata = parse_metadata(file.path(), value);
    } else {
      header.entries.emplace(name, parse_entry(file.path(), name, value));
    }
  }
  const auto data = kLengthBytes + static_cast<int64_t>(text.size());
  check_coverage(file, header.entries, data);
  for (auto& [name, entry] : header.entries) {
    entry.begin += data;
    entry.end += data;
  }
  return header;
}

}  // namespace torchvq::io
