#include "stack.h"

#include <c10/util/Exception.h>

#include <vector>

namespace torchvq::cli {
namespace {

constexpr int64_t kWidestBeam = 65536;

std::string name_of(const fit::CodebookStack& stack, int64_t group, int64_t level) {
  auto name = "level " + std::to_string(level);
  return stack.groups.size() == 1 ? name : "group " + std::to_string(group) + " " + name;
}

}  // namespace

fit::CodebookStack stack_of(const io::CodecStack& codec) {
  fit::CodebookStack stack;
  stack.metric = codec.groups[0][0].metric;
  for (const auto& group : codec.groups) {
    stack.groups.emplace_back();
    for (const auto& level : group) stack.groups.back().push_back(level.codebook);
  }
  return stack;
}

void add_beam_option(CLI::App& command, int64_t& beam) {
  add_number_option(command, "--beam", beam,
                    "Paths through the levels that the search keeps (default: 1, greedy)", 1,
                    kWidestBeam);
}

void check_beam(int64_t beam, const fit::CodebookStack& stack, const std::string& codec_path) {
  const auto paths = stack.paths();
  TORCH_CHECK_VALUE(beam <= paths, "--beam: expected at most ", paths,
                    ", the ways through the levels of ", codec_path, ", but got ", beam);
}

void add_stack(Report& report, const fit::CodebookStack& stack, bool show_size) {
  const bool single = stack.columns() == 1;
  report.add("codebook_size", single && !show_size ? "" : "codebook size", sizes_of(stack));
  report.add("levels", single ? "" : "levels", stack.levels());
  report.add("groups", stack.groups.size() == 1 ? "" : "groups", stack.groups.size());
}

void add_usage(Report& report, const fit::CodebookStack& stack,
               const std::vector<at::Tensor>& counts) {
  std::vector<CodesOf> columns;
  for (int64_t column = 0; column < stack.columns(); ++column) {
    const auto group = column / stack.levels(), level = column % stack.levels();
    columns.push_back({name_of(stack, group, level), group, level});
  }
  report.add_usage(columns, counts);
}

}  // namespace torchvq::cli
