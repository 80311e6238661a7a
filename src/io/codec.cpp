#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/safetensors.h>
#include <torchvq/version.h>

#include <map>
#include <vector>

#include "io/array_layout.h"

namespace torchvq::io {
namespace {

constexpr auto kFormatVersion = "1";
constexpr auto kClass = "VectorQuantize";
const char* const kEmbed = "_codebook.embed";

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The part of the keys before `_codebook.`: empty for a quantizer's own state.
std::string find_prefix(const std::string& path, const SafetensorsFile& file) {
  std::vector<std::string> prefixes;
  for (const auto& [name, entry] : file.entries()) {
    if (ends_with(name, kEmbed))
      prefixes.push_back(name.substr(0, name.size() - std::string(kEmbed).size()));
  }
  TORCH_CHECK_VALUE(!prefixes.empty(), path, ": expected a codec, with a tensor named ", kEmbed,
                    ", but it has none");
  TORCH_CHECK_VALUE(prefixes.size() == 1, path, ": expected one codebook, but it holds ",
                    prefixes.size());
  return prefixes[0];
}

std::string find_metadata(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? "" : found->second;
}

void check_metadata(const std::string& path, const SafetensorsFile& file) {
  const auto version = find_metadata(file, "format_version");
  TORCH_CHECK_VALUE(version.empty() || version == kFormatVersion, path,
                    ": expected codec format version ", kFormatVersion, ", but got ", version);
  const auto type = find_metadata(file, "class");
  TORCH_CHECK_VALUE(type.empty() || type == kClass, path, ": expected a codec of class ", kClass,
                    ", but got ", type);
}

void check_metric(const std::string& metric, const std::string& where) {
  TORCH_CHECK_VALUE(metric == "euclidean" || metric == "cosine", where,
                    ": expected metric to be euclidean or cosine, but got ", metric);
}

std::string find_metric(const std::string& path, const SafetensorsFile& file,
                        const std::string& asked) {
  const auto said = find_metadata(file, "metric");
  if (!asked.empty()) check_metric(asked, "load_codec");
  if (said.empty()) return asked.empty() ? "euclidean" : asked;
  check_metric(said, path);
  TORCH_CHECK_VALUE(asked.empty() || asked == said, path, ": expected a codec with metric ", asked,
                    ", but got ", said);
  return said;
}

at::Tensor load_embed(const std::string& path, const SafetensorsFile& file,
                      const std::string& name) {
  const auto& entry = file.entry(name);
  TORCH_CHECK_TYPE(at::isFloatingType(entry.dtype), path, ": expected ", name,
                   " to be floating point, but got ", entry.dtype);
  TORCH_CHECK_VALUE(
      entry.shape.size() == 3 && entry.shape[0] == 1 && entry.shape[1] > 0 && entry.shape[2] > 0,
      path, ": expected ", name, " to have shape (1, codebook_size, dim), but got ",
      shape_string(entry.shape));
  const auto embed = file.tensor(name).squeeze(0).to(at::kFloat).contiguous();
  TORCH_CHECK_VALUE(at::isfinite(embed).all().item<bool>(), path,
                    ": expected a finite codebook, but ", name, " holds NaN or infinity");
  return embed;
}

at::Tensor load_state(const std::string& path, const SafetensorsFile& file, const std::string& name,
                      const std::vector<int64_t>& shape) {
  const auto& entry = file.entry(name);
  TORCH_CHECK_VALUE(entry.shape == shape && at::isFloatingType(entry.dtype), path, ": expected ",
                    name, " to be floating point of shape ", shape_string(shape), ", but got ",
                    entry.dtype, " of shape ", shape_string(entry.shape));
  return file.tensor(name).squeeze(0).to(at::kFloat).contiguous();
}

}  // namespace

Codec make_codec(const at::Tensor& codebook, const at::Tensor& counts, const std::string& metric) {
  const auto cluster_size = counts.to(at::kFloat);
  return {codebook, cluster_size, codebook * cluster_size.unsqueeze(1), metric};
}

void save_codec(OutputFile& file, const Codec& codec) {
  check_metric(codec.metric, "save_codec");
  const auto size = codec.codebook.size(0), dim = codec.codebook.size(1);
  save_safetensors(file,
                   {{"_codebook.initted", at::scalar_tensor(true, at::kBool)},
                    {"_codebook.cluster_size", codec.cluster_size.to(at::kFloat).view({1, size})},
                    {"_codebook.embed_avg", codec.embed_avg.to(at::kFloat).view({1, size, dim})},
                    {"_codebook.embed", codec.codebook.to(at::kFloat).view({1, size, dim})}},
                   {{"format", "pt"},
                    {"format_version", kFormatVersion},
                    {"class", kClass},
                    {"codebook_size", std::to_string(size)},
                    {"dim", std::to_string(dim)},
                    {"metric", codec.metric},
                    {"torchvq_version", TORCHVQ_VERSION}});
}

void save_codec(const std::string& path, const Codec& codec) {
  OutputFile file(path);
  save_codec(file, codec);
}

Codec load_codec(const std::string& path, const std::string& metric) {
  const SafetensorsFile file(path);
  check_metadata(path, file);
  const auto prefix = find_prefix(path, file);
  TORCH_CHECK_VALUE(!file.contains(prefix + "project_in.weight"), path,
                    ": expected a codec without projections, which need the module around it, but "
                    "it has project_in");
  Codec codec;
  codec.metric = find_metric(path, file, metric);
  codec.codebook = load_embed(path, file, prefix + kEmbed);
  const auto size = codec.codebook.size(0), dim = codec.codebook.size(1);
  codec.cluster_size = load_state(path, file, prefix + "_codebook.cluster_size", {1, size});
  codec.embed_avg = load_state(path, file, prefix + "_codebook.embed_avg", {1, size, dim});
  return codec;
}

}  // namespace torchvq::io
