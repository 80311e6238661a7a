// torchvq encode: vectors -> codes.
#include <torchvq/io/npy.h>

#include <memory>

#include "blocks.h"
#include "codec.h"
#include "commands.h"
#include "options.h"
#include "progress.h"
#include "report.h"
#include "stack.h"

namespace torchvq::cli {
namespace {

struct EncodeArguments {
  CommonOptions common;
  std::string codec;
  std::string vectors;
  std::string output;
  std::string key;
  std::string metric;
  int64_t beam = 1;
  int64_t memory = kDefaultMemory;
};

constexpr auto kEncodeFooter = R"(
Vectors of shape (..., dim) give codes in the smallest of uint8, uint16, int32 and int64 that holds them. One codebook
gives shape (...): the index of the nearest code, the lowest on a tie. Several give shape (..., groups * levels): the
levels of group 0, then those of group 1, and so on. The choice is exact, so every machine writes the same codes; a
codec without codebooks (fsq, lfq) projects in float64 before it rounds.

--beam B keeps the B best ways through the levels instead of one: smaller errors, more work, the same number of bits.

Examples:
  torchvq encode codec.safetensors vectors.npy -o codes.npy
  torchvq encode residual.safetensors vectors.npy --beam 8 -o codes.npy
  torchvq encode codec.safetensors batch.safetensors --key features -o codes.npy --quiet)";

at::ScalarType smallest_dtype(int64_t codebook_size) {
  if (codebook_size <= int64_t{1} << 8) return at::kByte;
  if (codebook_size <= int64_t{1} << 16) return at::kUInt16;
  return codebook_size <= int64_t{1} << 31 ? at::kInt : at::kLong;
}

void run_encode(const EncodeArguments& arguments) {
  check_output(arguments.output, ".npy", {arguments.vectors, arguments.codec}, arguments.common);
  const auto codec = load_codec(arguments.codec, {arguments.metric, arguments.beam});
  const BlockReader reader(arguments.vectors, arguments.key, arguments.memory);
  check_dim(reader.source(), codec->dim(), arguments.codec);
  auto shape = reader.source().array().shape();
  shape.pop_back();
  if (codec->columns() > 1) shape.push_back(codec->columns());
  const auto dtype = smallest_dtype(codec->largest_codebook());
  io::NpyWriter writer(arguments.output, dtype, shape);
  Progress progress("encode", reader.rows(), arguments.common.quiet);
  reader.for_each([&](int64_t first, const at::Tensor& block) {
    writer.append(codec->encode(block).to(dtype));
    progress.update(first + block.size(0));
  });
  writer.finish();
  progress.finish();

  Report report("encode");
  report.add("input", "", arguments.vectors);
  report.add("output", "wrote", arguments.output);
  report.add("vectors", "vectors", reader.rows());
  report.add("shape", "", shape);
  report.add("dtype", "dtype", std::string(c10::getDtypeNames(dtype).first));
  codec->describe(report, true);
  codec->describe_search(report);
  report.print(arguments.common);
}

}  // namespace

void add_encode(CLI::App& program, Run& run) {
  auto* command = program.add_subcommand("encode", "Turn vectors into codes");
  const auto arguments = std::make_shared<EncodeArguments>();
  add_codec_argument(*command, arguments->codec);
  add_vectors_argument(*command, arguments->vectors);
  add_output_option(*command, arguments->output, "Codes to write (.npy)");
  add_beam_option(*command, arguments->beam);
  add_key_option(*command, arguments->key);
  add_metric_override(*command, arguments->metric);
  add_memory_option(*command, arguments->memory);
  add_common_options(*command, arguments->common);
  command->footer(kEncodeFooter);
  command->callback([&run, arguments] { run = [arguments] { run_encode(*arguments); }; });
}

}  // namespace torchvq::cli
