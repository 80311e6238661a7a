// Common parts of commands for codecs of one or more codebooks.
#pragma once

#include <torchvq/fit/codebook_stack.h>
#include <torchvq/io/codec.h>

#include <string>
#include <vector>

#include "options.h"
#include "report.h"

namespace torchvq::cli {

fit::CodebookStack stack_of(const io::CodecStack& codec);

/// --beam: number of paths that the search keeps.
void add_beam_option(CLI::App& command, int64_t& beam);

/// Throws c10::ValueError for a beam wider than the number of paths.
void check_beam(int64_t beam, const fit::CodebookStack& stack, const std::string& codec_path);

/// The codes of each column; one number if all columns have it.
template <typename Codec>
nlohmann::ordered_json sizes_of(const Codec& codec) {
  auto sizes = nlohmann::ordered_json::array();
  bool uniform = true;
  for (int64_t i = 0; i < codec.columns(); ++i) {
    sizes.push_back(codec.codebook(i).size(0));
    uniform &= sizes[i] == sizes[0];
  }
  return uniform ? sizes[0] : sizes;
}

/// Reports the numbers of codes, levels and groups. With `show_size` false, the size of a single
/// codebook is written only to JSON, for reports that show it with the usage.
void add_stack(Report& report, const fit::CodebookStack& stack, bool show_size = true);

/// Reports usage and cost of the codes from the counts of each column. Several
/// columns get one line each.
void add_usage(Report& report, const fit::CodebookStack& stack,
               const std::vector<at::Tensor>& counts);

}  // namespace torchvq::cli
