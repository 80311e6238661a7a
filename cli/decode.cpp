// torchvq decode: codes -> vectors.
#include <torchvq/io/array_source.h>
#include <torchvq/io/npy.h>

#include <algorithm>
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

struct DecodeArguments {
  CommonOptions common;
  std::string codec;
  std::string codes;
  std::string output;
  std::string key;
  int64_t memory = kDefaultMemory;
};

constexpr auto kDecodeFooter = R"(
Codes of any integer dtype give vectors of shape (..., dim), float32. Codes have the shape (...) if the codec has one
codebook, and (..., groups * levels), as `torchvq encode` writes them, if it has several. The code -1 (a masked token,
a dropped level) adds nothing, and a vector with no other code is zero; any other code outside [0, codebook size) is an
error.

Examples:
  torchvq decode codec.safetensors codes.npy -o decoded.npy
  torchvq decode codec.safetensors tokens.safetensors --key tokens -o decoded.npy)";

// Checks codes against the codebook of their column; `first` is the number of codes before this block.
void check_codes(const std::string& path, const at::Tensor& codes, int64_t first,
                 const Codec& codec) {
  const auto* code = codes.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < codes.numel(); ++i) {
    const auto size = codec.codebook_size(i % codec.columns());
    TORCH_CHECK_INDEX(code[i] >= -1 && code[i] < size, path, ": expected codes to be in [-1, ",
                      size, "), but got ", code[i], " at position ", first + i);
  }
}

std::vector<int64_t> decoded_shape(const io::IndexSource& codes, const Codec& codec,
                                   const DecodeArguments& arguments) {
  auto shape = codes.array().shape();
  if (codec.columns() > 1) {
    TORCH_CHECK_VALUE(shape.size() >= 2 && shape.back() == codec.columns(), arguments.codes,
                      ": expected codes of shape (..., ", codec.columns(), "), as ",
                      arguments.codec, " has ", codec.columns(), " codebooks, but got shape ",
                      nlohmann::json(shape).dump());
    shape.pop_back();
  }
  shape.push_back(codec.dim());
  return shape;
}

void run_decode(const DecodeArguments& arguments) {
  check_output(arguments.output, ".npy", {arguments.codes, arguments.codec}, arguments.common);
  // Decoding does not depend on the metric, so the codec need not name it.
  const auto codec = load_codec(arguments.codec);
  const io::IndexSource codes(arguments.codes, arguments.key);
  const auto columns = codec->columns(), dim = codec->dim();
  const auto shape = decoded_shape(codes, *codec, arguments);
  io::NpyWriter writer(arguments.output, at::kFloat, shape);
  const auto vectors = codes.rows() * codes.row_length() / columns;
  // With one codebook a row is a clip of any length, which the budget may not hold: (1, N).
  const bool flat = columns == 1 && !codes.array().fortran_order();
  const auto row_vectors = flat ? 1 : codes.row_length() / columns;
  const auto block_rows = choose_block_rows(row_bytes_of(row_vectors, dim), arguments.memory);
  Progress progress("decode", vectors, arguments.common.quiet);
  const auto rows = row_vectors == 0 ? 0 : vectors / row_vectors;
  for (int64_t first = 0; first < rows; first += block_rows) {
    const auto count = std::min(block_rows, rows - first);
    const auto block = flat ? codes.read_flat(first, count) : codes.read(first, count);
    check_codes(arguments.codes, block, first * row_vectors * columns, *codec);
    writer.append(codec->decode(block.view({count * row_vectors, columns})));
    progress.update((first + count) * row_vectors);
  }
  writer.finish();
  progress.finish();

  Report report("decode");
  report.add("input", "", arguments.codes);
  report.add("output", "wrote", arguments.output);
  report.add("vectors", "vectors", vectors);
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
  command->footer(kDecodeFooter);
  command->callback([&run, arguments] { run = [arguments] { run_decode(*arguments); }; });
}

}  // namespace torchvq::cli
