#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/projected_codec.h>
#include <torchvq/version.h>

#include <charconv>
#include <map>
#include <string>

#include "io/array_layout.h"
#include "io/codec_keys.h"
#include "io/finite_float.h"

namespace torchvq::io {
namespace {

constexpr auto kProjectedClass = "ProjectedCodec";
constexpr auto kProjectedVersion = "1";

using fit::ProjectedCodec;
using fit::ProjectedLevel;
using fit::ProjectedStack;
using fit::Projection;

std::string key_of_stack(size_t stack) { return "stacks." + std::to_string(stack) + "."; }

std::string key_of_level(size_t stack, size_t level) {
  return key_of_stack(stack) + "layers." + std::to_string(level) + ".";
}

std::string metadata_of(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? "" : found->second;
}

/// Reads a file and records which tensors were read.
class Reader {
 public:
  Reader(const std::string& path, const SafetensorsFile& file) : path_(path), file_(file) {}

  bool has(const std::string& name) const { return file_.contains(name); }

  /// A finite float32 tensor; -1 in `shape` accepts any size but 0.
  at::Tensor take(const std::string& name, const std::vector<int64_t>& shape) {
    const auto& entry = file_.entry(name);
    bool fits = entry.shape.size() == shape.size() && at::isFloatingType(entry.dtype);
    for (size_t i = 0; fits && i < shape.size(); ++i)
      fits = shape[i] < 0 ? entry.shape[i] > 0 : entry.shape[i] == shape[i];
    TORCH_CHECK_VALUE(fits, path_, ": expected ", name, " to be floating point of shape ",
                      shape_string(shape), " (-1: any), but got ", entry.dtype, " of shape ",
                      shape_string(entry.shape));
    const auto tensor = file_.tensor(name).to(at::kFloat).contiguous();
    TORCH_CHECK_VALUE(at::isfinite(tensor).all().item<bool>(), path_, ": expected ", name,
                      " to be finite, but it holds NaN or infinity");
    ++taken_;
    return tensor;
  }

  /// The map at `key` between this many features; -1 accepts the map's own size.
  Projection take_map(const std::string& key, int64_t out, int64_t in) {
    Projection map;
    if (!has(key + "weight")) return map;
    map.weight = take(key + "weight", {out, in});
    if (has(key + "bias")) map.bias = take(key + "bias", {map.weight.size(0)});
    return map;
  }

  void check_way_back(const std::string& key, const Projection& out, int64_t outside,
                      int64_t inside) const {
    TORCH_CHECK_VALUE(out.weight.defined() || inside == outside, path_, ": expected ", key,
                      "project_out.weight to lead back to ", outside,
                      " features, but there is none");
  }

  void check_all_taken() const {
    TORCH_CHECK_VALUE(taken_ == file_.entries().size(), path_,
                      ": expected the tensors of a projected codec alone, but ",
                      file_.entries().size() - taken_, " are no part of one");
  }

 private:
  const std::string& path_;
  const SafetensorsFile& file_;
  size_t taken_ = 0;
};

int64_t features_of(const Projection& map, int64_t without) {
  return map.weight.defined() ? map.weight.size(0) : without;
}

ProjectedLevel load_projected_level(Reader& reader, const std::string& key, int64_t features) {
  ProjectedLevel level;
  level.in = reader.take_map(key + "project_in.", -1, features);
  const auto inside = features_of(level.in, features);
  level.codebook = reader.take(key + kEmbed, {1, -1, inside}).squeeze(0);
  level.out = reader.take_map(key + "project_out.", features, inside);
  reader.check_way_back(key, level.out, features, inside);
  return level;
}

ProjectedStack load_projected_stack(Reader& reader, size_t index, int64_t dim) {
  ProjectedStack stack;
  const auto key = key_of_stack(index);
  stack.in = reader.take_map(key + "project_in.", -1, dim);
  const auto features = features_of(stack.in, dim);
  for (size_t q = 0; reader.has(key_of_level(index, q) + kEmbed); ++q)
    stack.levels.push_back(load_projected_level(reader, key_of_level(index, q), features));
  stack.out = reader.take_map(key + "project_out.", dim, features);
  reader.check_way_back(key, stack.out, dim, features);
  return stack;
}

int64_t dim_of(const std::string& path, const SafetensorsFile& file) {
  const auto text = metadata_of(file, "dim");
  int64_t dim = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), dim);
  TORCH_CHECK_VALUE(error == std::errc() && end == text.data() + text.size() && dim >= 1, path,
                    ": expected dim to be a whole number of at least 1, but got ", text);
  return dim;
}

ProjectedCodec without_maps(const std::string& path) {
  const auto codec = load_codec_stack(path);
  TORCH_CHECK_VALUE(codec.groups.size() == 1, path, ": expected a codec of one group, but got ",
                    codec.groups.size());
  ProjectedCodec result;
  result.metric = codec.groups[0][0].metric;
  result.dim = codec.groups[0][0].codebook.size(1);
  result.stacks.emplace_back();
  for (const auto& level : codec.groups[0])
    result.stacks[0].levels.push_back({{}, level.codebook, {}});
  return result;
}

void add_map(std::map<std::string, at::Tensor>& tensors, const std::string& key,
             const Projection& map) {
  if (map.weight.defined())
    tensors[key + "weight"] = finite_float("save_projected_codec", key + "weight", map.weight);
  if (map.bias.defined())
    tensors[key + "bias"] = finite_float("save_projected_codec", key + "bias", map.bias);
}

}  // namespace

void save_projected_codec(OutputFile& file, const ProjectedCodec& codec) {
  fit::check_projected_codec("save_projected_codec", codec);
  std::map<std::string, at::Tensor> tensors;
  for (size_t s = 0; s < codec.stacks.size(); ++s) {
    const auto& stack = codec.stacks[s];
    add_map(tensors, key_of_stack(s) + "project_in.", stack.in);
    add_map(tensors, key_of_stack(s) + "project_out.", stack.out);
    for (size_t q = 0; q < stack.levels.size(); ++q) {
      const auto& level = stack.levels[q];
      const auto key = key_of_level(s, q);
      add_map(tensors, key + "project_in.", level.in);
      add_map(tensors, key + "project_out.", level.out);
      tensors[key + kEmbed] =
          finite_float("save_projected_codec", key + kEmbed, level.codebook).unsqueeze(0);
    }
  }
  save_safetensors(file, tensors,
                   {{"format", "pt"},
                    {"format_version", kProjectedVersion},
                    {"class", kProjectedClass},
                    {"dim", std::to_string(codec.dim)},
                    {"metric", codec.metric},
                    {"torchvq_version", TORCHVQ_VERSION}});
}

void save_projected_codec(const std::string& path, const ProjectedCodec& codec) {
  OutputFile file(path);
  save_projected_codec(file, codec);
}

ProjectedCodec load_projected_codec(const std::string& path) {
  const SafetensorsFile file(path);
  if (!holds_projected_codec(file)) return without_maps(path);
  const auto version = metadata_of(file, "format_version");
  TORCH_CHECK_VALUE(version == kProjectedVersion, path, ": expected codec format version ",
                    kProjectedVersion, ", but got ", version);
  ProjectedCodec codec;
  codec.dim = dim_of(path, file);
  codec.metric = metadata_of(file, "metric");
  TORCH_CHECK_VALUE(codec.metric == "euclidean" || codec.metric == "cosine", path,
                    ": expected metric to be euclidean or cosine, but got ", codec.metric);
  Reader reader(path, file);
  for (size_t s = 0; reader.has(key_of_level(s, 0) + kEmbed); ++s)
    codec.stacks.push_back(load_projected_stack(reader, s, codec.dim));
  TORCH_CHECK_VALUE(!codec.stacks.empty(), path,
                    ": expected a codec with at least one codebook, but got none");
  reader.check_all_taken();
  return codec;
}

bool holds_projected_codec(const SafetensorsFile& file) {
  return metadata_of(file, "class") == kProjectedClass;
}

}  // namespace torchvq::io
