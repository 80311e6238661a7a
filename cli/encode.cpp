// torchvq encode: vectors -> codes.
#include <torchvq/functional/usage.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/npy.h>
#include <torchvq/ops/nearest_code.h>

#include <memory>

#include "blocks.h"
#include "commands.h"
#include "options.h"
#include "progress.h"
#include "report.h"

namespace torchvq::cli {
namespace {

struct EncodeArguments {
  CommonOptions common;
  std::string codec;
  std::string vectors;
  std::string output;
  std::string key;
  std::string metric;
  int64_t memory = kDefaultMemory;
};

constexpr auto kFooter = R"(
Vectors of shape (..., dim) give codes of shape (...), int64: the index of the nearest code, the lowest on a tie. The
choice is exact (decided in float64 on float32 values), so every machine writes the same codes.

Examples:
  torchvq encode codec.safetensors vectors.npy -o codes.npy
  torchvq encode codec.safetensors batch.safetensors --key features -o codes.npy --quiet)";

void run_encode(const EncodeArguments& arguments) {
  check_output(arguments.output, ".npy", {arguments.vectors, arguments.codec});
  const auto codec = io::load_codec(arguments.codec, arguments.metric);
  const BlockReader reader(arguments.vectors, arguments.key, arguments.memory);
  check_dim(reader.source(), codec.codebook.size(1), arguments.codec);
  auto shape = reader.source().array().shape();
  shape.pop_back();
  io::NpyWriter writer(arguments.output, at::kLong, shape);
  const auto options = ops::NearestCodeOptions().metric(codec.metric);
  Progress progress("encode", reader.rows(), arguments.common.quiet);
  reader.for_each([&](int64_t first, const at::Tensor& block) {
    writer.append(ops::nearest_code(block, codec.codebook, options).indices);
    progress.update(first + block.size(0));
  });
  writer.finish();
  progress.finish();

  Report report("encode");
  report.add("input", "", arguments.vectors);
  report.add("output", "wrote", arguments.output);
  report.add("vectors", "vectors", reader.rows());
  report.add("shape", "", shape);
  report.add("codebook_size", "codebook size", codec.codebook.size(0));
  report.print(arguments.common);
}

}  // namespace

void add_encode(CLI::App& program, Run& run) {
  auto* command = program.add_subcommand("encode", "Turn vectors into codes");
  const auto arguments = std::make_shared<EncodeArguments>();
  add_codec_argument(*command, arguments->codec);
  add_vectors_argument(*command, arguments->vectors);
  add_output_option(*command, arguments->output, "Codes to write (.npy)");
  add_key_option(*command, arguments->key);
  add_metric_override(*command, arguments->metric);
  add_memory_option(*command, arguments->memory);
  add_common_options(*command, arguments->common);
  command->footer(kFooter);
  command->callback([&run, arguments] { run = [arguments] { run_encode(*arguments); }; });
}

}  // namespace torchvq::cli
