#include <torchvq/options/recommended.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <span>
#include <string_view>

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <torchvq/options/by_name.h>

#include "options/tables.h"

namespace torchvq {
namespace {

// The table ---------------------------------------------------------------------------------------

struct Setting {
  const char* name;
  const char* value;
};

// Codes start in the data, averages cover some 20 steps, and nearly unused codes are replaced.
constexpr std::array kAverages{Setting{"kmeans_init", "True"}, Setting{"decay", "0.95"},
                               Setting{"dead_code_threshold_fraction", "0.1"}};
// If the number of tokens per step is known: how many tokens the average of a code covers.
constexpr double kTokensOfAverage = 40;
constexpr double kLeastDecay = 0.9, kMostDecay = 0.99;
// If they move: an average lags behind by the steps that it covers.
constexpr double kTokensOfMovingAverage = 16, kMostMovingDecay = 0.975;
// Latents on a sphere, which keeps the entropies similar for all sizes.
constexpr std::array kSigns{Setting{"spherical", "True"}, Setting{"entropy_loss_weight", "0.005"},
                            Setting{"commitment_loss_weight", "0.1"}};
// With the weights above a stack collapses (docs/design/lookup-free-quantization.md, Stacks).
constexpr std::array kStackedSigns{Setting{"commitment_loss_weight", "0.25"}};
// Chiu et al. 2022, arXiv:2202.01855.
constexpr std::array kRandomProjection{Setting{"codebook_dim", "16"}};
constexpr std::array kCopied{Setting{"rotation_trick", "False"}};

// Levels whose product is close to a power of two: at least 5 each if possible (Mentzer et al.
// 2023, arXiv:2309.15505, section 4.1), even numbers first.
constexpr int64_t kLeastLevelBits = 3;
constexpr std::array kLevels{
    "[8]",
    "[5, 3]",
    "[8, 4]",
    "[8, 8]",
    "[5, 5, 5]",
    "[8, 6, 5]",
    "[8, 8, 8]",
    "[8, 5, 5, 5]",
    "[8, 8, 6, 5]",
    "[7, 5, 5, 5, 5]",
    "[8, 8, 5, 5, 5]",
    "[8, 8, 8, 6, 5]",
    "[8, 8, 8, 8, 8]",
    "[8, 8, 8, 5, 5, 5]",
    "[8, 8, 8, 8, 6, 5]",
    "[8, 8, 8, 8, 8, 8]",
};
constexpr int64_t kMostLevelBits = kLeastLevelBits + kLevels.size() - 1;
// Codes that are kept in a table; those of signs are not.
constexpr int64_t kMostTableBits = 30, kMostSignBits = 62;

// The names of the option that sets a class's size.
constexpr const char *kCodebookSize = "codebook_size", *kLevelList = "levels", *kBits = "bits";
constexpr const char* kVectorQuantize = "VectorQuantize";

struct Preset {
  const char* owner;
  const char* size;
  std::span<const Setting> settings;
  int64_t most_bits = kMostTableBits;
};

constexpr std::array kPresets{
    Preset{kVectorQuantize, kCodebookSize, kAverages},
    Preset{"ResidualVQ", kCodebookSize, kAverages},
    Preset{"GroupedResidualVQ", kCodebookSize, kAverages},
    Preset{"HierarchicalVQ", kCodebookSize, {}},
    Preset{"SimVQ", kCodebookSize, {}},
    Preset{"ResidualSimVQ", kCodebookSize, kCopied},
    Preset{"RandomProjectionQuantizer", kCodebookSize, kRandomProjection},
    Preset{"LFQ", kCodebookSize, kSigns, kMostSignBits},
    Preset{"EvoLFQ", kCodebookSize, kSigns, kMostSignBits},
    Preset{"ResidualLFQ", kCodebookSize, kStackedSigns, kMostSignBits},
    Preset{"GroupedResidualLFQ", kCodebookSize, kStackedSigns, kMostSignBits},
    Preset{"FSQ", kLevelList, {}, kMostLevelBits},
    Preset{"ResidualFSQ", kLevelList, {}, kMostLevelBits},
    Preset{"GroupedResidualFSQ", kLevelList, {}, kMostLevelBits},
    Preset{"FSP", kLevelList, {}, kMostLevelBits},
    Preset{"LatentQuantize", kLevelList, {}, kMostLevelBits},
    Preset{"BinaryMapper", kBits, {}},
};
constexpr std::array kShortNames{Setting{"vq", kVectorQuantize}, Setting{"rvq", "ResidualVQ"},
                                 Setting{"bsq", "LFQ"}, Setting{"latent", "LatentQuantize"}};

// What it says ------------------------------------------------------------------------------------

std::string lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
  return text;
}

std::string preset_names() {
  std::string names;
  for (const auto& preset : kPresets)
    names += (names.empty() ? "" : ", ") + std::string(preset.owner);
  return names;
}

const Preset& preset_of(const std::string& name) {
  auto wanted = lower_case(name);
  for (const auto& known : kShortNames) {
    if (wanted == known.name) wanted = lower_case(known.value);
  }
  const auto found = std::find_if(kPresets.begin(), kPresets.end(), [&](const Preset& preset) {
    return lower_case(preset.owner) == wanted;
  });
  TORCH_CHECK_VALUE(found != kPresets.end(), "recommended: expected quantizer to be one of ",
                    preset_names(), ", but got '", name, "'");
  return *found;
}

std::string size_text(const Preset& preset, int64_t bits) {
  const std::string_view size = preset.size;
  const int64_t least = size == kLevelList ? kLeastLevelBits : 1;
  TORCH_CHECK_VALUE(least <= bits && bits <= preset.most_bits,
                    "recommended: expected bits to be in [", least, ", ", preset.most_bits,
                    "], but got ", bits);
  if (size == kLevelList) return kLevels.at(static_cast<size_t>(bits - kLeastLevelBits));
  return std::to_string(size == kBits ? bits : int64_t{1} << bits);
}

/// The decay for this many tokens per step, rounded to thousandths.
std::string decay_text(int64_t tokens, int64_t bits, bool moving) {
  const double per_code = std::ldexp(static_cast<double>(tokens), -static_cast<int>(bits));
  const double wanted = moving ? kTokensOfMovingAverage : kTokensOfAverage;
  const double decay =
      std::clamp(1 - per_code / wanted, kLeastDecay, moving ? kMostMovingDecay : kMostDecay);
  return detail::option_text(std::round(decay * 1000) / 1000);
}

}  // namespace

std::vector<std::string> recommended_options(const std::string& name, int64_t bits,
                                             std::optional<int64_t> tokens, bool moving) {
  const auto& preset = preset_of(name);
  const bool fits = preset.owner == std::string_view(kVectorQuantize) && tokens.value_or(1) >= 1;
  TORCH_CHECK_VALUE(
      !tokens || fits,
      "recommended: expected tokens to be at least 1, and for VectorQuantize, but got ",
      tokens.value_or(0), " for ", preset.owner);
  TORCH_CHECK_VALUE(!moving || tokens,
                    "recommended: expected tokens to be given with moving=True, but got none");
  std::vector<std::string> lines{std::string(preset.size) + "=" + size_text(preset, bits)};
  for (const auto& [option, value] : preset.settings) {
    const bool follows = tokens && option == std::string_view("decay");
    lines.push_back(std::string(option) + "=" +
                    (follows ? decay_text(*tokens, bits, moving) : value));
  }
  return lines;
}

template <typename Options>
Options recommended(Options options, int64_t bits, std::optional<int64_t> tokens, bool moving) {
  const std::string owner = detail::option_table<Options>().owner;
  for (const auto& line : recommended_options(owner, bits, tokens, moving)) {
    const auto split = line.find('=');
    const bool known = set_option(options, line.substr(0, split), line.substr(split + 1));
    TORCH_INTERNAL_ASSERT(known, owner, " has no option for ", line);
  }
  return options;
}

#define TORCHVQ_RECOMMENDED(Options) \
  template TORCHVQ_API Options recommended(Options, int64_t, std::optional<int64_t>, bool)
TORCHVQ_RECOMMENDED(BinaryMapperOptions);
TORCHVQ_RECOMMENDED(EvoLFQOptions);
TORCHVQ_RECOMMENDED(FSPOptions);
TORCHVQ_RECOMMENDED(FSQOptions);
TORCHVQ_RECOMMENDED(GroupedResidualFSQOptions);
TORCHVQ_RECOMMENDED(GroupedResidualLFQOptions);
TORCHVQ_RECOMMENDED(GroupedResidualVQOptions);
TORCHVQ_RECOMMENDED(HierarchicalVQOptions);
TORCHVQ_RECOMMENDED(LatentQuantizeOptions);
TORCHVQ_RECOMMENDED(LFQOptions);
TORCHVQ_RECOMMENDED(RandomProjectionQuantizerOptions);
TORCHVQ_RECOMMENDED(ResidualFSQOptions);
TORCHVQ_RECOMMENDED(ResidualLFQOptions);
TORCHVQ_RECOMMENDED(ResidualSimVQOptions);
TORCHVQ_RECOMMENDED(ResidualVQOptions);
TORCHVQ_RECOMMENDED(SimVQOptions);
TORCHVQ_RECOMMENDED(VectorQuantizeOptions);
#undef TORCHVQ_RECOMMENDED

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("recommended_options(str name, int bits, int? tokens=None, bool moving=False) -> str[]",
        [](const std::string& name, int64_t bits, std::optional<int64_t> tokens, bool moving) {
          return torchvq::recommended_options(name, bits, tokens, moving);
        });
}
