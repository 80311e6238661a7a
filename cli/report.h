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

/// Which of a vector's codes a column holds, and what people call it.
struct CodesOf {
  std::string name;
  int64_t group;
  int64_t level;
};

class Report {
 public:
  explicit Report(const std::string& command);

  /// @param key    the JSON name.
  /// @param label  what people read; empty keeps the value to JSON.
  /// @param unit   what follows the value for people.
  void add(const std::string& key, const std::string& label, nlohmann::ordered_json value,
           const std::string& unit = "");

  /// A line for people alone.
  void add_line(const std::string& label, const std::string& text) {
    lines_.push_back({label, text});
  }

  /// Use and cost of the codes, the measures that fit, eval and inspect share: counts of each
  /// column (K,). Several columns get a line each.
  void add_usage(const std::vector<CodesOf>& columns, const std::vector<at::Tensor>& counts);

  /// Throws IoError when standard output refuses.
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

/// Writes text to standard output; throws IoError when it refuses.
void write_output(const std::string& text);

}  // namespace torchvq::cli
