// torchvq inspect: the content of a file.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isfinite.h>
#include <torchvq/io/array_source.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/npy.h>
#include <torchvq/io/projected_codec.h>
#include <torchvq/io/safetensors.h>
#include <torchvq/io/scalar_codec.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "commands.h"
#include "options.h"
#include "projected.h"
#include "report.h"
#include "scalar.h"
#include "stack.h"

namespace torchvq::cli {
namespace {

using nlohmann::ordered_json;

struct InspectArguments {
  CommonOptions common;
  std::string file;
};

constexpr auto kInspectFooter = R"(
A codec: its size, levels, groups, metric, and how the codes were used when it was fitted. Another
.safetensors file: its tensors. A .npy file: its array.

Examples:
  torchvq inspect codec.safetensors
  torchvq inspect vectors.npy --json)";

std::string dtype_name(at::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

std::string describe(at::ScalarType dtype, const std::vector<int64_t>& shape) {
  return dtype_name(dtype) + " " + ordered_json(shape).dump();
}

void inspect_array(const std::string& path, Report& report) {
  const auto array = io::load_npy_header(path);
  report.add("kind", "kind", "array");
  report.add("dtype", "dtype", dtype_name(array.dtype));
  report.add("shape", "shape", array.shape);
  report.add("fortran_order", "Fortran order", array.fortran_order);
}

void inspect_tensors(const io::SafetensorsFile& file, Report& report) {
  report.add("kind", "kind", "tensors");
  // Appended: by its key, each tensor would be looked for among all others.
  ordered_json::object_t tensors;
  for (const auto& [name, entry] : file.entries()) {
    tensors.emplace_back(name,
                         ordered_json{{"dtype", dtype_name(entry.dtype)}, {"shape", entry.shape}});
    report.add_line(name, describe(entry.dtype, entry.shape));
  }
  report.add("tensors", "", std::move(tensors));
  report.add("metadata", "", file.metadata());
}

void add_norms(const fit::CodebookStack& stack, Report& report) {
  double smallest = std::numeric_limits<double>::infinity(), largest = 0;
  for (int64_t i = 0; i < stack.columns(); ++i) {
    const auto norms = stack.codebook(i).to(at::kDouble).norm(2, 1);
    smallest = std::min(smallest, norms.min().item<double>());
    largest = std::max(largest, norms.max().item<double>());
  }
  report.add("smallest_norm", "smallest norm", smallest);
  report.add("largest_norm", "largest norm", largest);
}

bool are_counts(const at::Tensor& counts) {
  return at::isfinite(counts).logical_and_(counts.ge(0)).all().item<bool>();
}

void inspect_codec(const std::string& path, const io::SafetensorsFile& file, Report& report) {
  const auto codec = io::load_codec_stack(path);
  const auto stack = stack_of(codec);
  report.add("kind", "kind", "codec");
  add_stack(report, stack);
  report.add("dim", "dim", stack.dim());
  const bool says = file.metadata().contains("metric");
  report.add("metric", "metric", says ? ordered_json(stack.metric) : ordered_json("unknown"));
  add_norms(stack, report);
  std::vector<at::Tensor> counts;
  for (const auto& group : codec.groups) {
    for (const auto& level : group) counts.push_back(level.cluster_size);
  }
  // A state from Python may hold others. The other commands read codes alone, so it is a codec.
  if (std::ranges::all_of(counts, are_counts)) {
    add_usage(report, stack, counts);
  } else {
    report.add_line("usage", "unknown (a count in the file is negative or not finite)");
  }
  report.add("metadata", "", file.metadata());
}

void inspect_scalar_codec(const std::string& path, const io::SafetensorsFile& file,
                          Report& report) {
  const auto codec = io::load_scalar_codec(path);
  report.add("kind", "kind", "codec");
  add_scalar(report, codec);
  report.add("dim", "dim", codec.dim);
  add_scalar_usage(report, codec, {});
  report.add("metadata", "", file.metadata());
}

void inspect_projected_codec(const std::string& path, const io::SafetensorsFile& file,
                             Report& report) {
  const auto codec = io::load_projected_codec(path);
  report.add("kind", "kind", "codec");
  add_projected(report, codec);
  report.add("dim", "dim", codec.dim);
  report.add("metric", "metric", codec.metric);
  report.add("metadata", "", file.metadata());
}

void run_inspect(const InspectArguments& arguments) {
  Report report("inspect");
  report.add("file", "file", arguments.file);
  if (io::file_format(arguments.file) == io::FileFormat::kNpy) {
    inspect_array(arguments.file, report);
  } else {
    const io::SafetensorsFile file(arguments.file);
    if (io::holds_projected_codec(file)) {
      inspect_projected_codec(arguments.file, file, report);
    } else if (io::holds_scalar_codec(file)) {
      inspect_scalar_codec(arguments.file, file, report);
    } else if (io::holds_codec(file)) {
      inspect_codec(arguments.file, file, report);
    } else {
      inspect_tensors(file, report);
    }
  }
  report.print(arguments.common);
}

}  // namespace

void add_inspect(CLI::App& program, Run& run) {
  auto* command =
      program.add_subcommand("inspect", "Show the content of a codec, .safetensors or .npy file");
  const auto arguments = std::make_shared<InspectArguments>();
  command->add_option("file", arguments->file, "Codec, .safetensors or .npy file")
      ->required()
      ->option_text("FILE (required)");
  add_common_options(*command, arguments->common);
  command->footer(kInspectFooter);
  command->callback([&run, arguments] { run = [arguments] { run_inspect(*arguments); }; });
}

}  // namespace torchvq::cli
