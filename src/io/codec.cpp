#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/safetensors.h>
#include <torchvq/version.h>

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "detail/has_shape.h"
#include "io/array_layout.h"
#include "io/codec_keys.h"

namespace torchvq::io {
namespace {

constexpr auto kCodecVersion = "1";

// The Python module of a stack.
std::string class_of(size_t groups, size_t levels) {
  if (groups > 1) return "GroupedResidualVQ";
  return levels > 1 ? "ResidualVQ" : "VectorQuantize";
}

std::string find_metadata(const SafetensorsFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? "" : found->second;
}

void check_metadata(const std::string& path, const SafetensorsFile& file) {
  const auto version = find_metadata(file, "format_version");
  TORCH_CHECK_VALUE(version.empty() || version == kCodecVersion, path,
                    ": expected codec format version ", kCodecVersion, ", but got ", version);
  const auto type = find_metadata(file, "class");
  TORCH_CHECK_VALUE(type.empty() || type == "VectorQuantize" || type == "ResidualVQ" ||
                        type == "GroupedResidualVQ",
                    path,
                    ": expected a codec of class VectorQuantize, ResidualVQ or "
                    "GroupedResidualVQ, but got ",
                    type);
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

bool names_part(const std::string& name, const std::string& part) {
  return name.starts_with(part) || name.find("." + part) != std::string::npos;
}

// Rejects modules that compute more than codebooks do. Parts of the module stand beside its codebook;
// the last three are of modules around it.
void check_plain(const std::string& path, const SafetensorsFile& file, const std::string& prefix) {
  static constexpr std::array<const char*, 4> kParts = {
      "project_in.", "mlps.", "_codebook.batch_mean", "_codebook.vq_bridge."};
  static constexpr std::array<const char*, 3> kAround = {"phi_shared.", "phi_levels.",
                                                         "rand_projs"};
  for (const auto& [name, entry] : file.entries()) {
    const bool own = name.starts_with(prefix);
    const auto rest = own ? name.substr(prefix.size()) : std::string();
    const bool needs_module =
        std::any_of(kParts.begin(), kParts.end(),
                    [&](const char* part) { return own && names_part(rest, part); }) ||
        std::any_of(kAround.begin(), kAround.end(),
                    [&name = name](const char* part) { return names_part(name, part); });
    TORCH_CHECK_VALUE(!needs_module, path,
                      ": expected a codec without projections, convolutions, implicit codebooks, "
                      "bridges and affine maps, which need the module around it, but it has ",
                      name);
  }
}

Codec load_level(const std::string& path, const SafetensorsFile& file, const std::string& key,
                 const std::string& metric) {
  Codec codec;
  codec.metric = metric;
  codec.codebook = load_embed(path, file, key + kEmbed);
  const auto size = codec.codebook.size(0), dim = codec.codebook.size(1);
  codec.cluster_size = load_state(path, file, key + "_codebook.cluster_size", {1, size});
  codec.embed_avg = load_state(path, file, key + "_codebook.embed_avg", {1, size, dim});
  return codec;
}

using detail::has_shape;

void check_shapes(const Codec& codec, const std::string& where) {
  const auto& codes = codec.codebook;
  TORCH_CHECK_VALUE(codes.defined() && at::isFloatingType(codes.scalar_type()) &&
                        codes.dim() == 2 && codes.numel() > 0,
                    where, ": expected a floating-point codebook of shape (K, D), but got ",
                    codes.defined() ? c10::str(codes.scalar_type(), " of shape ", codes.sizes())
                                    : "an undefined tensor");
  TORCH_CHECK_VALUE(has_shape(codec.cluster_size, codes.sizes().slice(0, 1)) &&
                        has_shape(codec.embed_avg, codes.sizes()),
                    where, ": expected floating-point averages for ", codes.size(0), " codes of ",
                    codes.size(1), " features, but got other shapes or dtypes");
}

void check_stack(const CodecStack& stack, const std::string& where) {
  TORCH_CHECK_VALUE(!stack.groups.empty() && !stack.groups[0].empty(), where,
                    ": expected a codec with at least one codebook, but got none");
  for (const auto& group : stack.groups) {
    for (const auto& codec : group) check_shapes(codec, where);
  }
  const auto levels = stack.groups[0].size();
  const auto dim = stack.groups[0][0].codebook.size(1);
  for (const auto& group : stack.groups) {
    TORCH_CHECK_VALUE(group.size() == levels, where, ": expected groups of ", levels,
                      " levels each, but got one of ", group.size());
    for (const auto& codec : group) {
      check_metric(codec.metric, where);
      TORCH_CHECK_VALUE(codec.codebook.size(1) == dim, where, ": expected codebooks of dimension ",
                        dim, ", but got ", codec.codebook.size(1));
      TORCH_CHECK_VALUE(codec.metric == "euclidean" || stack.groups.size() * levels == 1, where,
                        ": expected metric to be euclidean for several levels or groups, but got ",
                        codec.metric);
    }
  }
}

void add_tensors(std::map<std::string, at::Tensor>& tensors, const std::string& key,
                 const Codec& codec) {
  const auto size = codec.codebook.size(0), dim = codec.codebook.size(1);
  tensors[key + "_codebook.initted"] = at::scalar_tensor(true, at::kBool);
  tensors[key + "_codebook.cluster_size"] = codec.cluster_size.to(at::kFloat).view({1, size});
  tensors[key + "_codebook.embed_avg"] = codec.embed_avg.to(at::kFloat).view({1, size, dim});
  tensors[key + kEmbed] = codec.codebook.to(at::kFloat).view({1, size, dim});
}

// Of the numbers as the file holds them: what float64 holds may be infinite there.
void check_saved(const Codec& codec, size_t group, size_t level) {
  const auto counts = codec.cluster_size.to(at::kFloat);
  TORCH_CHECK_VALUE(at::isfinite(counts).logical_and_(counts.ge(0)).all().item<bool>(),
                    "save_codec: expected cluster_size to be finite in float32 and at least 0, but "
                    "level ",
                    level, " of group ", group, " has another");
  const auto fits = [](const at::Tensor& numbers) {
    return at::isfinite(numbers.to(at::kFloat)).all(1);
  };
  const auto finite = fits(codec.codebook).logical_and_(fits(codec.embed_avg));
  if (finite.all().item<bool>()) return;
  const auto code = finite.logical_not().nonzero()[0].item<int64_t>();
  TORCH_CHECK_VALUE(false,
                    "save_codec: expected every code and the sum of its vectors to fit in float32, "
                    "but code ",
                    code, " of level ", level, " of group ", group, " stands for ",
                    codec.cluster_size[code].item<double>(), " vectors with magnitudes of up to ",
                    codec.codebook[code].abs().max().item<double>());
}

// One number if all levels have it, otherwise the sizes of the levels of the first group.
std::string sizes_of(const CodecStack& stack) {
  std::string text;
  bool uniform = true;
  const auto& levels = stack.groups[0];
  for (const auto& codec : levels) {
    if (!text.empty()) text += ',';
    text += std::to_string(codec.codebook.size(0));
    uniform &= codec.codebook.size(0) == levels[0].codebook.size(0);
  }
  return uniform ? std::to_string(levels[0].codebook.size(0)) : text;
}

}  // namespace

Codec make_codec(const at::Tensor& codebook, const at::Tensor& counts, const std::string& metric) {
  TORCH_CHECK_VALUE(codebook.dim() == 2 && counts.sizes() == codebook.sizes().slice(0, 1),
                    "make_codec: expected counts to have one number per code, but got shape ",
                    counts.sizes(), " for a codebook of shape ", codebook.sizes());
  const auto codes = codebook.to(at::kFloat), cluster_size = counts.to(at::kFloat);
  return {codes, cluster_size, codes * cluster_size.unsqueeze(1), metric};
}

void save_codec(OutputFile& file, const Codec& codec) { save_codec_stack(file, {{{codec}}}); }

void save_codec(const std::string& path, const Codec& codec) {
  OutputFile file(path);
  save_codec(file, codec);
}

void save_codec_stack(OutputFile& file, const CodecStack& stack) {
  check_stack(stack, "save_codec");
  const auto groups = stack.groups.size(), levels = stack.groups[0].size();
  const auto keys = codec_keys(groups, levels);
  std::map<std::string, at::Tensor> tensors;
  for (size_t g = 0; g < groups; ++g) {
    for (size_t q = 0; q < levels; ++q) {
      check_saved(stack.groups[g][q], g, q);
      add_tensors(tensors, keys[g][q], stack.groups[g][q]);
    }
  }
  const auto& first = stack.groups[0][0];
  const auto dim = first.codebook.size(1) * static_cast<int64_t>(groups);
  std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                 {"format_version", kCodecVersion},
                                                 {"class", class_of(groups, levels)},
                                                 {"codebook_size", sizes_of(stack)},
                                                 {"dim", std::to_string(dim)},
                                                 {"metric", first.metric},
                                                 {"torchvq_version", TORCHVQ_VERSION}};
  if (groups > 1 || levels > 1) metadata["num_quantizers"] = std::to_string(levels);
  if (groups > 1) metadata["groups"] = std::to_string(groups);
  save_safetensors(file, tensors, metadata);
}

void save_codec_stack(const std::string& path, const CodecStack& stack) {
  OutputFile file(path);
  save_codec_stack(file, stack);
}

bool holds_codec(const SafetensorsFile& file) {
  const auto& entries = file.entries();
  return std::any_of(entries.begin(), entries.end(), [](const auto& entry) {
    return entry.first == kEmbed || entry.first.ends_with("." + kEmbed);
  });
}

CodecStack load_codec_stack(const std::string& path, const std::string& metric) {
  const SafetensorsFile file(path);
  check_metadata(path, file);
  const auto keys = find_codec_keys(path, file);
  check_plain(path, file, codec_prefix(keys));
  const auto found = find_metric(path, file, metric);
  CodecStack stack;
  for (const auto& group : keys) {
    stack.groups.emplace_back();
    for (const auto& key : group) stack.groups.back().push_back(load_level(path, file, key, found));
  }
  check_stack(stack, path);
  return stack;
}

Codec load_codec(const std::string& path, const std::string& metric) {
  const auto stack = load_codec_stack(path, metric);
  const auto levels = stack.groups.size() * stack.groups[0].size();
  TORCH_CHECK_VALUE(levels == 1, path, ": expected one codebook, but it holds ", levels);
  return stack.groups[0][0];
}

}  // namespace torchvq::io
