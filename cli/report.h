// The result of a command, on standard output: aligned lines for people, one JSON object for
// scripts.
#pragma once

#include <torchvq/functional/usage.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "options.h"

namespace torchvq::cli {

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

  /// The measures that fit, eval and inspect share.
  void add_usage(const functional::CodebookUsage& usage);

  /// Throws IoError when standard output refuses.
  void print(const CommonOptions& options) const;

 private:
  struct Line {
    std::string label;
    std::string text;
  };

  nlohmann::ordered_json json_;
  std::vector<Line> lines_;
};

/// Writes text to standard output; throws IoError when it refuses.
void write_output(const std::string& text);

}  // namespace torchvq::cli
