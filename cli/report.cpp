#include "report.h"

#include <c10/util/StringUtil.h>
#include <torchvq/io/error.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <utility>

#include "failure.h"

namespace torchvq::cli {
namespace {

std::string human(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  if (!value.is_number_float()) return value.dump();
  // The sign of NaN, which printf shows, means nothing.
  if (std::isnan(value.get<double>())) return "nan";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.6g", value.get<double>());
  return text.data();
}

std::string share_of(const functional::CodebookUsage& usage) {
  std::array<char, 96> text{};
  std::snprintf(text.data(), text.size(), "%lld of %lld codes (%.4g %%)",
                static_cast<long long>(usage.used_codes),
                static_cast<long long>(usage.codebook_size), 100 * usage.usage);
  return text.data();
}

nlohmann::ordered_json json_of(const functional::CodebookUsage& usage, const CodesOf& column) {
  return {{"group", column.group},
          {"level", column.level},
          {"used_codes", usage.used_codes},
          {"usage", usage.usage},
          {"perplexity", usage.perplexity},
          {"bits_per_vector", usage.bits_per_vector},
          {"entropy_bits", usage.entropy_bits}};
}

}  // namespace

Report::Report(const std::string& command) { json_["command"] = command; }

void Report::add(const std::string& key, const std::string& label, nlohmann::ordered_json value,
                 const std::string& unit) {
  if (!label.empty()) lines_.push_back({label, human(value) + (unit.empty() ? "" : " " + unit)});
  json_[key] = std::move(value);
}

void Report::add_single_usage(const functional::CodebookUsage& usage) {
  add_line("usage", share_of(usage));
  json_["used_codes"] = usage.used_codes;
  json_["usage"] = usage.usage;
  add("perplexity", "perplexity", usage.perplexity);
  add("bits_per_vector", "bits per vector", usage.bits_per_vector);
  add("entropy_bits", "entropy", usage.entropy_bits, "bits per vector");
}

void Report::add_usage(const std::vector<CodesOf>& columns, const std::vector<at::Tensor>& counts) {
  if (counts.size() == 1) {
    add_single_usage(functional::codebook_usage(counts[0]));
    return;
  }
  auto codes = nlohmann::ordered_json::array();
  double bits = 0, entropy = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto usage = functional::codebook_usage(counts[i]);
    codes.push_back(json_of(usage, columns[i]));
    add_line(columns[i].name, c10::str(share_of(usage), ", perplexity ", human(usage.perplexity)));
    bits += usage.bits_per_vector;
    entropy += usage.entropy_bits;
  }
  add("codes", "", codes);
  add("bits_per_vector", "bits per vector", bits);
  add("entropy_bits", "entropy", entropy, "bits per vector");
}

void Report::print(const CommonOptions& options) const {
  if (options.json) {
    // Names from files may be any bytes, but the object must be UTF-8.
    write_output(json_.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) +
                 "\n");
    return;
  }
  if (options.quiet) return;
  size_t width = 0;
  for (const auto& line : lines_) width = std::max(width, line.label.size());
  std::string text;
  for (const auto& line : lines_) {
    text += in_one_line(line.label + std::string(width + 2 - line.label.size(), ' ') + line.text);
    text += '\n';
  }
  write_output(text);
}

void write_output(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return;
  throw io::IoError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                    c10::str("standard output: cannot write: ", std::strerror(errno)));
}

}  // namespace torchvq::cli
