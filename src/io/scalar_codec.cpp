#include <ATen/TensorOperators.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <torchvq/io/scalar_codec.h>
#include <torchvq/version.h>

#include <bit>
#include <charconv>
#include <map>
#include <string>
#include <vector>

#include "io/array_layout.h"
#include "io/finite_float.h"

namespace torchvq::io {
namespace {

constexpr auto kScalarCodecVersion = "1";
constexpr int64_t kMostLevels = 65536;
constexpr int64_t kMostCodes = int64_t{1} << 62;
using Metadata = std::map<std::string, std::string>;

std::string text_of(const std::vector<int64_t>& numbers) {
  std::string text;
  for (const auto number : numbers) {
    if (!text.empty()) text += ',';
    text += std::to_string(number);
  }
  return text;
}

std::string find(const std::string& path, const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  TORCH_CHECK_VALUE(found != metadata.end(), path, ": expected metadata to say ", key,
                    ", but it does not");
  return found->second;
}

/// Integers of at least 1, separated by commas.
std::vector<int64_t> numbers_of(const std::string& path, const Metadata& metadata,
                                const std::string& key) {
  const auto text = find(path, metadata, key);
  std::vector<int64_t> numbers;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    int64_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    const bool whole = error == std::errc() && number >= 1 && (next == end || *next == ',');
    TORCH_CHECK_VALUE(whole, path, ": expected ", key,
                      " to be whole numbers of at least 1, but got ", text);
    numbers.push_back(number);
    if (next == end) return numbers;
    at = next + 1;
  }
}

int64_t number_of(const std::string& path, const Metadata& metadata, const std::string& key) {
  const auto numbers = numbers_of(path, metadata, key);
  TORCH_CHECK_VALUE(numbers.size() == 1, path, ": expected ", key, " to be one number, but got ",
                    find(path, metadata, key));
  return numbers[0];
}

std::vector<int64_t> signs_of(const std::string& path, int64_t codebook_size) {
  const auto size = static_cast<uint64_t>(codebook_size);
  TORCH_CHECK_VALUE(std::has_single_bit(size) && codebook_size >= 2 && codebook_size <= kMostCodes,
                    path, ": expected codebook_size to be a power of two from 2 to 2^62, but got ",
                    codebook_size);
  return std::vector<int64_t>(std::countr_zero(size), 2);
}

void check_levels(const std::string& path, const fit::ScalarCodec& codec) {
  int64_t size = 1;
  for (const auto level : codec.levels) {
    TORCH_CHECK_VALUE(level >= 2 && level <= kMostLevels && size <= kMostCodes / level, path,
                      ": expected levels of 2 to ", kMostLevels,
                      " whose product is at most 2^62, but got ", text_of(codec.levels));
    size *= level;
  }
}

at::Tensor load_tensor(const std::string& path, const SafetensorsFile& file,
                       const std::string& name, const std::vector<int64_t>& shape) {
  const auto& entry = file.entry(name);
  TORCH_CHECK_VALUE(entry.shape == shape && at::isFloatingType(entry.dtype), path, ": expected ",
                    name, " to be floating point of shape ", shape_string(shape), ", but got ",
                    entry.dtype, " of shape ", shape_string(entry.shape));
  const auto tensor = file.tensor(name).to(at::kFloat).contiguous();
  TORCH_CHECK_VALUE(at::isfinite(tensor).all().item<bool>(), path, ": expected ", name,
                    " to be finite, but it holds NaN or infinity");
  return tensor;
}

at::Tensor powers_of_two(int64_t count) {
  auto powers = at::ones({count}, at::kLong);
  auto* power = powers.mutable_data_ptr<int64_t>();
  for (int64_t i = count - 2; i >= 0; --i) power[i] = 2 * power[i + 1];
  return powers;
}

}  // namespace

void save_scalar_codec(OutputFile& file, const fit::ScalarCodec& codec) {
  fit::check_scalar_codec("save_scalar_codec", codec);
  std::map<std::string, at::Tensor> tensors;
  if (codec.in_weight.defined()) {
    tensors = {{"project_in.weight", codec.in_weight},
               {"project_in.bias", codec.in_bias},
               {"project_out.weight", codec.out_weight},
               {"project_out.bias", codec.out_bias}};
    for (auto& [name, tensor] : tensors) tensor = finite_float("save_scalar_codec", name, tensor);
  }
  const bool signs = codec.method == "lfq";
  Metadata metadata = {{"format", "pt"},
                       {"format_version", kScalarCodecVersion},
                       {"class", signs ? "LFQ" : "FSQ"},
                       {"codebook_size", std::to_string(codec.codebook_size())},
                       {"num_codebooks", std::to_string(codec.num_codebooks)},
                       {"dim", std::to_string(codec.dim)},
                       {"torchvq_version", TORCHVQ_VERSION}};
  if (signs) {
    tensors["mask"] = powers_of_two(static_cast<int64_t>(codec.levels.size()));
  } else {
    metadata["levels"] = text_of(codec.levels);
  }
  save_safetensors(file, tensors, metadata);
}

fit::ScalarCodec load_scalar_codec(const std::string& path) {
  const SafetensorsFile file(path);
  const auto& metadata = file.metadata();
  TORCH_CHECK_VALUE(holds_scalar_codec(file), path, ": expected a codec of class FSQ or LFQ");
  const auto version = find(path, metadata, "format_version");
  TORCH_CHECK_VALUE(version == kScalarCodecVersion, path, ": expected codec format version ",
                    kScalarCodecVersion, ", but got ", version);
  fit::ScalarCodec codec;
  codec.method = find(path, metadata, "class") == "LFQ" ? "lfq" : "fsq";
  codec.levels = codec.method == "lfq" ? signs_of(path, number_of(path, metadata, "codebook_size"))
                                       : numbers_of(path, metadata, "levels");
  check_levels(path, codec);
  codec.num_codebooks = number_of(path, metadata, "num_codebooks");
  TORCH_CHECK_VALUE(codec.num_codebooks <= kMostCodes / static_cast<int64_t>(codec.levels.size()),
                    path,
                    ": expected num_codebooks to be of codebooks that fit in memory, but got ",
                    codec.num_codebooks);
  codec.dim = number_of(path, metadata, "dim");
  const auto features = codec.features(), dim = codec.dim;
  if (codec.method == "lfq" || features != dim) {
    codec.in_weight = load_tensor(path, file, "project_in.weight", {features, dim});
    codec.in_bias = load_tensor(path, file, "project_in.bias", {features});
    codec.out_weight = load_tensor(path, file, "project_out.weight", {dim, features});
    codec.out_bias = load_tensor(path, file, "project_out.bias", {dim});
  }
  return codec;
}

bool holds_scalar_codec(const SafetensorsFile& file) {
  const auto found = file.metadata().find("class");
  return found != file.metadata().end() && (found->second == "FSQ" || found->second == "LFQ");
}

}  // namespace torchvq::io
