// Options that several commands share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace torchvq::cli {

struct CommonOptions {
  bool json = false;
  bool quiet = false;
  int threads = 0;  // 0: as many as torch chooses
};

/// --json, --quiet and --threads. The threads are set before the command runs.
void add_common_options(CLI::App& command, CommonOptions& options);

/// The positional arguments; `vectors` and `codec` are also the words of the usage line.
void add_codec_argument(CLI::App& command, std::string& path);
void add_vectors_argument(CLI::App& command, std::string& path);

/// -o, --output.
void add_output_option(CLI::App& command, std::string& path, const std::string& description);

/// --key: the tensor of a .safetensors file.
void add_key_option(CLI::App& command, std::string& key);

/// --memory: the budget in bytes.
void add_memory_option(CLI::App& command, int64_t& bytes);

/// --metric, for codecs whose file does not name it.
void add_metric_override(CLI::App& command, std::string& metric);

/// "512M", "1.5G", "2GiB" or plain bytes; throws CLI::ValidationError otherwise.
int64_t parse_memory(const std::string& text);

/// Decimal digits, with a sign if negative; throws CLI::ValidationError for any other text, which
/// CLI11's own conversion takes (010 is 8 there, and a number too large is the largest), and
/// outside [least, most].
int64_t parse_number(const std::string& option, const std::string& text, int64_t least,
                     int64_t most);

/// An option of such a number.
CLI::Option* add_number_option(CLI::App& command, const std::string& name, int64_t& number,
                               const std::string& description, int64_t least, int64_t most);

/// "8,5,5"; throws CLI::ValidationError for anything but whole numbers, each after one comma.
std::vector<int64_t> parse_levels(const std::string& text);

/// Rejects an output that is one of the inputs, whose ending belongs to another format, or that is
/// standard output or standard error while the report or the progress goes there. Devices and pipes
/// are accepted.
void check_output(const std::string& output, const std::string& ending,
                  const std::vector<std::string>& inputs, const CommonOptions& options);

/// Rejects an output that is the input's file. Also for a process that writes nothing, and whose
/// input nobody else knows.
void check_is_not_input(const std::string& output, const std::string& input);

}  // namespace torchvq::cli
