// The result of a command, on standard output: aligned lines for people, one JSON object for
// scripts.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/functional/usage.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "options.h"

namespace torchvq::cli {

/// Which code of a vector a column contains, and its name in reports.
struct CodesOf {
  std::string name;
  int64_t group;
  int64_t level;
};

class Report {
 public:
  explicit Report(const std::string& command);

  /// @param key    the JSON name.
  /// @param label  the label in text; empty writes the value only to JSON.
  /// @param unit   follows the value in text.
  void add(const std::string& key, const std::string& label, nlohmann::ordered_json value,
           const std::string& unit = "");

  /// Adds a line that appears only in text.
  void add_line(const std::string& label, const std::string& text) {
    lines_.push_back({label, text});
  }

  /// Reports usage and cost of the codes, the measures of fit, eval and inspect, from the counts
  /// (K,) of each column. Several columns get one line each.
  void add_usage(const std::vector<CodesOf>& columns, const std::vector<at::Tensor>& counts);

  /// Throws IoError if writing to standard output fails.
  void print(const CommonOptions& options) const;

 private:
  struct Line {
    std::string label;
    std::string text;
  };

  nlohmann::ordered_json json_;
  void add_single_usage(const functional::CodebookUsage& usage);

  std::vector<Line> lines_;
};

/// Writes text to standard output; throws IoError if that fails.
void write_output(const std::string& text);

}  // namespace torchvq::cli
