#include "projected.h"

#include <string>

namespace torchvq::cli {
namespace {

using nlohmann::ordered_json;

// One number if all columns have it.
ordered_json projected_sizes(const fit::ProjectedCodec& codec) {
  auto sizes = ordered_json::array();
  bool uniform = true;
  for (int64_t i = 0; i < codec.columns(); ++i) {
    sizes.push_back(codec.codebook(i).size(0));
    uniform &= sizes[i] == sizes[0];
  }
  return uniform ? sizes[0] : sizes;
}

}  // namespace

void add_projected(Report& report, const fit::ProjectedCodec& codec, bool show_size) {
  const bool single = codec.columns() == 1;
  report.add("codebook_size", single && !show_size ? "" : "codebook size", projected_sizes(codec));
  auto levels = ordered_json::array();
  for (const auto& stack : codec.stacks) levels.push_back(stack.levels.size());
  report.add("levels", single ? "" : "levels", levels.size() == 1 ? levels[0] : levels);
  report.add("stacks", levels.size() == 1 ? "" : "stacks", levels.size());
}

void add_projected_usage(Report& report, const fit::ProjectedCodec& codec,
                         const std::vector<at::Tensor>& counts) {
  std::vector<CodesOf> columns;
  for (size_t s = 0; s < codec.stacks.size(); ++s) {
    for (size_t q = 0; q < codec.stacks[s].levels.size(); ++q) {
      auto name = "level " + std::to_string(q);
      if (codec.stacks.size() > 1) name = "stack " + std::to_string(s) + " " + name;
      columns.push_back({name, static_cast<int64_t>(s), static_cast<int64_t>(q)});
    }
  }
  report.add_usage(columns, counts);
}

}  // namespace torchvq::cli
