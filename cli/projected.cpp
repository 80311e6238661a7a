#include "projected.h"

#include <string>

#include "stack.h"

namespace torchvq::cli {

void add_projected(Report& report, const fit::ProjectedCodec& codec, bool show_size) {
  const bool single = codec.columns() == 1;
  report.add("codebook_size", single && !show_size ? "" : "codebook size", sizes_of(codec));
  auto levels = nlohmann::ordered_json::array();
  for (const auto& stack : codec.stacks) levels.push_back(stack.levels.size());
  report.add("levels", single ? "" : "levels", levels.size() == 1 ? levels[0] : levels);
  report.add("stacks", levels.size() == 1 ? "" : "stacks", levels.size());
}

void add_projected_usage(Report& report, const fit::ProjectedCodec& codec,
                         const std::vector<at::Tensor>& counts) {
  std::vector<CodesOf> columns;
  for (size_t s = 0; s < codec.stacks.size(); ++s) {
    for (size_t q = 0; q < codec.stacks[s].levels.size(); ++q) {
      std::string name;
      if (codec.stacks.size() > 1) name.append("stack ").append(std::to_string(s)).append(" ");
      name.append("level ").append(std::to_string(q));
      columns.push_back({name, static_cast<int64_t>(s), static_cast<int64_t>(q)});
    }
  }
  report.add_usage(columns, counts);
}

}  // namespace torchvq::cli
