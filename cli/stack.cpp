#include "stack.h"

#include <c10/util/Exception.h>
#include <torchvq/functional/usage.h>

#include <array>
#include <cstdio>

namespace torchvq::cli {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kWidestBeam = 65536;

ordered_json sizes_of(const functional::CodebookStack& stack) {
  auto sizes = ordered_json::array();
  bool uniform = true;
  for (int64_t i = 0; i < stack.columns(); ++i) {
    sizes.push_back(stack.codebook(i).size(0));
    uniform &= sizes[i] == sizes[0];
  }
  return uniform ? sizes[0] : sizes;
}

ordered_json json_of(const functional::CodebookUsage& usage, int64_t group, int64_t level) {
  return {{"group", group},
          {"level", level},
          {"used_codes", usage.used_codes},
          {"usage", usage.usage},
          {"perplexity", usage.perplexity},
          {"bits_per_vector", usage.bits_per_vector},
          {"entropy_bits", usage.entropy_bits}};
}

std::string name_of(const functional::CodebookStack& stack, int64_t group, int64_t level) {
  auto name = "level " + std::to_string(level);
  return stack.groups.size() == 1 ? name : "group " + std::to_string(group) + " " + name;
}

std::string describe(const functional::CodebookUsage& usage) {
  std::array<char, 128> text{};
  std::snprintf(text.data(), text.size(), "%lld of %lld codes (%.4g %%), perplexity %.6g",
                static_cast<long long>(usage.used_codes),
                static_cast<long long>(usage.codebook_size), 100 * usage.usage, usage.perplexity);
  return text.data();
}

}  // namespace

functional::CodebookStack stack_of(const io::CodecStack& codec) {
  functional::CodebookStack stack;
  stack.metric = codec.groups[0][0].metric;
  for (const auto& group : codec.groups) {
    stack.groups.emplace_back();
    for (const auto& level : group) stack.groups.back().push_back(level.codebook);
  }
  return stack;
}

void add_beam_option(CLI::App& command, int64_t& beam) {
  command
      .add_option("--beam", beam,
                  "Ways through the levels that the search keeps (default: 1, the nearest code of "
                  "each level)")
      ->check(CLI::Range(int64_t{1}, kWidestBeam))
      ->option_text("N");
}

void check_beam(int64_t beam, const functional::CodebookStack& stack,
                const std::string& codec_path) {
  const auto paths = stack.paths();
  TORCH_CHECK_VALUE(beam <= paths, "--beam: expected at most ", paths,
                    ", the ways through the levels of ", codec_path, ", but got ", beam);
}

void add_stack(Report& report, const functional::CodebookStack& stack, bool show_size) {
  const bool single = stack.columns() == 1;
  report.add("codebook_size", single && !show_size ? "" : "codebook size", sizes_of(stack));
  report.add("levels", single ? "" : "levels", stack.levels());
  report.add("groups", stack.groups.size() == 1 ? "" : "groups", stack.groups.size());
}

void add_usage(Report& report, const functional::CodebookStack& stack,
               const std::vector<at::Tensor>& counts) {
  if (counts.size() == 1) return report.add_usage(functional::codebook_usage(counts[0]));
  auto columns = ordered_json::array();
  double bits = 0, entropy = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto usage = functional::codebook_usage(counts[i]);
    const auto column = static_cast<int64_t>(i);
    const auto group = column / stack.levels(), level = column % stack.levels();
    columns.push_back(json_of(usage, group, level));
    report.add_line(name_of(stack, group, level), describe(usage));
    bits += usage.bits_per_vector;
    entropy += usage.entropy_bits;
  }
  report.add("codes", "", columns);
  report.add("bits_per_vector", "bits per vector", bits);
  report.add("entropy_bits", "entropy", entropy, "bits per vector");
}

}  // namespace torchvq::cli
