#include "io/codec_keys.h"

#include <c10/util/Exception.h>

#include <map>
#include <optional>
#include <tuple>
#include <utility>

namespace torchvq::io {
namespace {

constexpr int64_t kMostQuantizers = 1 << 20;

bool take_end(std::string& text, const std::string& end) {
  if (text.size() < end.size() || !text.ends_with(end)) return false;
  // Names consist of parts: "my_codebook.embed" is a different name.
  const auto rest = text.size() - end.size();
  if (rest > 0 && text[rest - 1] != '.') return false;
  text.resize(rest);
  return true;
}

/// Removes "<word>.<number>." from the end.
std::optional<int64_t> take_number(std::string& text, const std::string& word) {
  if (!text.ends_with('.')) return std::nullopt;
  const auto digits_end = text.size() - 1;
  auto begin = digits_end;
  while (begin > 0 && text[begin - 1] >= '0' && text[begin - 1] <= '9') --begin;
  if (begin == digits_end || digits_end - begin > 7) return std::nullopt;
  const auto number = std::stoll(text.substr(begin, digits_end - begin));
  auto rest = text.substr(0, begin);
  if (!take_end(rest, word + ".")) return std::nullopt;
  text = std::move(rest);
  return number;
}

struct Place {
  std::string prefix;
  std::optional<int64_t> group;
  std::optional<int64_t> level;
};

std::optional<Place> parse(const std::string& name) {
  Place place;
  place.prefix = name;
  if (!take_end(place.prefix, kEmbed)) return std::nullopt;
  place.level = take_number(place.prefix, "layers");
  if (place.level) place.group = take_number(place.prefix, "rvqs");
  return place;
}

std::string key_of(const Place& place) {
  auto key = place.prefix;
  if (place.group) key += "rvqs." + std::to_string(*place.group) + ".";
  if (place.level) key += "layers." + std::to_string(*place.level) + ".";
  return key;
}

}  // namespace

CodecKeys codec_keys(size_t groups, size_t levels) {
  CodecKeys keys(groups);
  for (size_t g = 0; g < groups; ++g) {
    for (size_t q = 0; q < levels; ++q) {
      Place place;
      if (groups > 1) place.group = static_cast<int64_t>(g);
      if (groups > 1 || levels > 1) place.level = static_cast<int64_t>(q);
      keys[g].push_back(key_of(place));
    }
  }
  return keys;
}

CodecKeys find_codec_keys(const std::string& path, const SafetensorsFile& file) {
  std::map<std::pair<int64_t, int64_t>, std::string> found;
  std::map<std::tuple<std::string, bool, bool>, int64_t> quantizers;
  for (const auto& [name, entry] : file.entries()) {
    const auto place = parse(name);
    if (!place) continue;
    ++quantizers[{place->prefix, place->group.has_value(), place->level.has_value()}];
    found[{place->group.value_or(0), place->level.value_or(0)}] = key_of(*place);
  }
  // safetensors.torch.save_model writes a shared tensor once, and its other names into the metadata.
  for (const auto& [name, kept] : file.metadata()) {
    const auto place = parse(name), own = parse(kept);
    if (!place || !own || !file.entries().contains(kept)) continue;
    found.try_emplace({place->group.value_or(0), place->level.value_or(0)}, key_of(*own));
  }
  TORCH_CHECK_VALUE(!quantizers.empty(), path, ": expected a codec, with a tensor named ", kEmbed,
                    ", but it has none");
  TORCH_CHECK_VALUE(quantizers.size() == 1, path,
                    ": expected one codebook or one residual stack of them, but it holds ",
                    quantizers.size());
  const auto levels = found.rbegin()->first.second + 1;
  const auto groups = found.rbegin()->first.first + 1;
  TORCH_CHECK_VALUE(levels <= kMostQuantizers && groups <= kMostQuantizers &&
                        static_cast<int64_t>(found.size()) == groups * levels,
                    path, ": expected every level of every group, but it holds ", found.size(),
                    " codebooks, the last of which is level ", levels - 1, " of group ",
                    groups - 1);
  CodecKeys keys(static_cast<size_t>(groups));
  for (const auto& [place, key] : found) {
    auto& group = keys[static_cast<size_t>(place.first)];
    TORCH_CHECK_VALUE(place.second == static_cast<int64_t>(group.size()), path,
                      ": expected every level of every group, but level ", group.size(),
                      " of group ", place.first, " is missing");
    group.push_back(key);
  }
  return keys;
}

std::string codec_prefix(const CodecKeys& keys) {
  auto prefix = keys[0][0];
  if (take_number(prefix, "layers")) take_number(prefix, "rvqs");
  return prefix;
}

}  // namespace torchvq::io
