// torchvq decode: codes -> vectors.
#include <torchvq/io/array_source.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/npy.h>
#include <torchvq/ops/lookup_codes.h>

#include <algorithm>
#include <memory>

#include "blocks.h"
#include "commands.h"
#include "options.h"
#include "progress.h"
#include "report.h"

namespace torchvq::cli {
namespace {

struct DecodeArguments {
  CommonOptions common;
  std::string codec;
  std::string codes;
  std::string output;
  std::string key;
  int64_t memory = kDefaultMemory;
};

constexpr auto kFooter = R"(
Codes of shape (...), of any integer dtype, give vectors of shape (..., dim), float32. The code -1 (a masked or
dropped token) gives a zero vector; any other code outside [0, codebook size) is an error.

Examples:
  torchvq decode codec.safetensors codes.npy -o decoded.npy
  torchvq decode codec.safetensors tokens.safetensors --key tokens -o decoded.npy)";

void check_codes(const std::string& path, const at::Tensor& codes, int64_t first, int64_t size) {
  const auto* code = codes.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < codes.numel(); ++i) {
    TORCH_CHECK_INDEX(code[i] >= -1 && code[i] < size, path, ": expected codes to be in [-1, ",
                      size, "), but got ", code[i], " at position ", first + i);
  }
}

void run_decode(const DecodeArguments& arguments) {
  check_output(arguments.output, ".npy", {arguments.codes, arguments.codec});
  // The metric does not matter here, so a codec that does not say will do.
  const auto codec = io::load_codec(arguments.codec);
  const io::IndexSource codes(arguments.codes, arguments.key);
  const auto size = codec.codebook.size(0), dim = codec.codebook.size(1);
  auto shape = codes.array().shape();
  shape.push_back(dim);
  io::NpyWriter writer(arguments.output, at::kFloat, shape);
  const auto row_bytes =
      std::max<int64_t>(1, codes.row_length()) * dim * static_cast<int64_t>(sizeof(float));
  const auto block_rows = choose_block_rows(row_bytes, arguments.memory);
  const auto codebook = codec.codebook.unsqueeze(0);
  Progress progress("decode", codes.rows() * codes.row_length(), arguments.common.quiet);
  for (int64_t first = 0; first < codes.rows(); first += block_rows) {
    const auto block = codes.read(first, std::min(block_rows, codes.rows() - first)).view({1, -1});
    check_codes(arguments.codes, block, first * codes.row_length(), size);
    writer.append(ops::lookup_codes(codebook, block));
    progress.update(first * codes.row_length() + block.size(1));
  }
  writer.finish();
  progress.finish();

  Report report("decode");
  report.add("input", "", arguments.codes);
  report.add("output", "wrote", arguments.output);
  report.add("vectors", "vectors", codes.rows() * codes.row_length());
  report.add("shape", "", shape);
  report.add("dim", "dim", dim);
  report.print(arguments.common);
}

}  // namespace

void add_decode(CLI::App& program, Run& run) {
  auto* command = program.add_subcommand("decode", "Turn codes back into vectors");
  const auto arguments = std::make_shared<DecodeArguments>();
  add_codec_argument(*command, arguments->codec);
  command->add_option("codes", arguments->codes, "Codes: .npy or .safetensors, integers")
      ->required()
      ->option_text("FILE (required)");
  add_output_option(*command, arguments->output, "Vectors to write (.npy)");
  add_key_option(*command, arguments->key);
  add_memory_option(*command, arguments->memory);
  add_common_options(*command, arguments->common);
  command->footer(kFooter);
  command->callback([&run, arguments] { run = [arguments] { run_decode(*arguments); }; });
}

}  // namespace torchvq::cli
