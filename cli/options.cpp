#include "options.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <sys/stat.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace torchvq::cli {
namespace {

constexpr int kMostThreads = 1024;
constexpr double kLeastMemory = 1 << 20;
constexpr double kMostMemory = 1LL << 50;

double unit_factor(std::string unit) {
  if (!unit.empty() && (unit.back() == 'B' || unit.back() == 'b')) unit.pop_back();
  if (!unit.empty() && unit.back() == 'i') unit.pop_back();
  if (unit.empty()) return 1;
  const auto place = std::string("KMGT").find(
      static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0]))));
  return unit.size() == 1 && place != std::string::npos
             ? std::pow(1024.0, static_cast<double>(place) + 1)
             : 0;
}

// Whether the file or pipe at `path` is the one that the standard stream writes to.
bool is_stream(const std::string& path, int descriptor) {
  struct stat named{}, standard{};
  return ::stat(path.c_str(), &named) == 0 && ::fstat(descriptor, &standard) == 0 &&
         (S_ISREG(named.st_mode) || S_ISFIFO(named.st_mode)) && named.st_dev == standard.st_dev &&
         named.st_ino == standard.st_ino;
}

}  // namespace

int64_t parse_memory(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const double bytes = end == text.c_str() ? 0 : number * unit_factor(end);
  if (!(bytes >= kLeastMemory && bytes <= kMostMemory)) {
    throw CLI::ValidationError("--memory",
                               "expected a size such as 512M or 2G, at least 1M, but got " + text);
  }
  return static_cast<int64_t>(bytes);
}

int64_t parse_number(const std::string& option, const std::string& text, int64_t least,
                     int64_t most) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || next != end || number < least || number > most) {
    throw CLI::ValidationError(
        option, c10::str("expected a whole number in [", least, ", ", most, "], but got ", text));
  }
  return number;
}

CLI::Option* add_number_option(CLI::App& command, const std::string& name, int64_t& number,
                               const std::string& description, int64_t least, int64_t most) {
  // "-k,--codebook-size" is called by its long name.
  const auto option = name.substr(name.rfind(',') + 1);
  return command
      .add_option_function<std::string>(
          name,
          [option, &number, least, most](const std::string& text) {
            number = parse_number(option, text, least, most);
          },
          description)
      ->option_text("N");
}

std::vector<int64_t> parse_levels(const std::string& text) {
  std::vector<int64_t> levels;
  const char* at = text.data();
  const char* end = at + text.size();
  while (true) {
    int64_t level = 0;
    const auto [next, error] = std::from_chars(at, end, level);
    if (error != std::errc() || (next != end && *next != ',')) {
      throw CLI::ValidationError("--quantizer-levels",
                                 "expected whole numbers such as 8,5,5, but got " + text);
    }
    levels.push_back(level);
    if (next == end) return levels;
    at = next + 1;
  }
}

void add_common_options(CLI::App& command, CommonOptions& options) {
  command.add_flag("--json", options.json, "Print the result as one JSON object");
  command.add_flag("-q,--quiet", options.quiet,
                   "No progress and no result, except the object of --json");
  command
      .add_option_function<std::string>(
          "--threads",
          [&options](const std::string& text) {
            options.threads = static_cast<int>(parse_number("--threads", text, 1, kMostThreads));
            at::set_num_threads(options.threads);
          },
          "Threads to compute with (default: all cores)")
      ->option_text("N");
}

void add_codec_argument(CLI::App& command, std::string& path) {
  command.add_option("codec", path, "Codec from `torchvq fit`, or a quantizer saved from Python")
      ->required()
      ->option_text("FILE (required)");
}

void add_vectors_argument(CLI::App& command, std::string& path) {
  command.add_option("vectors", path, "Vectors: .npy or .safetensors, (..., dim)")
      ->required()
      ->option_text("FILE (required)");
}

void add_output_option(CLI::App& command, std::string& path, const std::string& description) {
  command.add_option("-o,--output", path, description)->required()->option_text("FILE (required)");
}

void add_key_option(CLI::App& command, std::string& key) {
  command.add_option("--key", key, "Name of the tensor, if a .safetensors input holds several")
      ->option_text("NAME");
}

void add_memory_option(CLI::App& command, int64_t& bytes) {
  command
      .add_option_function<std::string>(
          "--memory", [&bytes](const std::string& text) { bytes = parse_memory(text); },
          "Memory for vectors; larger files are streamed (default: 1G)")
      ->option_text("SIZE");
}

void add_metric_override(CLI::App& command, std::string& metric) {
  command
      .add_option("--metric", metric,
                  "Metric of a codec saved from Python, whose file does not name it")
      ->check(CLI::IsMember({"euclidean", "cosine"}))
      ->option_text("NAME");
}

void check_output(const std::string& output, const std::string& ending,
                  const std::vector<std::string>& inputs, const CommonOptions& options) {
  namespace fs = std::filesystem;
  const bool reports = options.json || !options.quiet;
  TORCH_CHECK_VALUE(!reports || !is_stream(output, STDOUT_FILENO),
                    "--output: expected another place than standard output, which gets the report "
                    "(--quiet without --json gives none), but got ",
                    output);
  TORCH_CHECK_VALUE(options.quiet || !is_stream(output, STDERR_FILENO),
                    "--output: expected another place than standard error, which gets the progress "
                    "(--quiet gives none), but got ",
                    output);
  std::error_code ignored;
  if (fs::exists(output, ignored) && !fs::is_regular_file(output, ignored) &&
      !fs::is_directory(output, ignored))
    return;
  TORCH_CHECK_VALUE(output.ends_with(ending), "--output: expected a name that ends in ", ending,
                    ", but got ", output);
  for (const auto& input : inputs) check_is_not_input(output, input);
}

void check_is_not_input(const std::string& output, const std::string& input) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  TORCH_CHECK_VALUE(
      !fs::is_regular_file(output, ignored) || !fs::equivalent(input, output, ignored),
      "--output: expected another file than the input ", input);
}

}  // namespace torchvq::cli
