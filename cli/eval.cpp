// torchvq eval: the error of a codec on vectors.
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

struct EvalArguments {
  CommonOptions common;
  std::string codec;
  std::string vectors;
  std::string key;
  std::string metric;
  int64_t beam = 1;
  int64_t memory = kDefaultMemory;
};

constexpr auto kEvalFooter = R"(
  mse              mean squared difference between vectors and their codes, per element
  relative error   sum of squared differences / sum of squared elements
  usage            codes that at least one vector chose
  perplexity       2 ^ entropy: the number of equally likely codes that would be as varied
  bits per vector  log2(codebook size), the cost of a code without entropy coding; the sum over levels and groups
  entropy          what an ideal entropy coder would spend on a code

Each level of a residual codec has its own usage and perplexity. A codec of fsq or lfq with more than 2^24 codes has
no usage, perplexity and entropy, because its codes are not counted. With the cosine metric vectors
are scaled to unit length first.

Examples:
  torchvq eval codec.safetensors held_out.npy
  torchvq eval residual.safetensors held_out.npy --beam 8
  torchvq eval codec.safetensors held_out.npy --json | jq .mse)";

void run_eval(const EvalArguments& arguments) {
  const auto codec = load_codec(arguments.codec, {arguments.metric, arguments.beam});
  BlockReader reader(arguments.vectors, arguments.key, arguments.memory);
  check_dim(reader.source(), codec->dim(), arguments.codec);
  TORCH_CHECK_VALUE(reader.rows() > 0, arguments.vectors,
                    ": expected at least 1 vector, but it holds none");
  Progress progress("eval", reader.rows(), arguments.common.quiet);
  const auto result =
      codec->evaluate(reader.blocks(), [&](int64_t rows) { progress.update(rows); });
  progress.finish();

  Report report("eval");
  report.add("codec", "", arguments.codec);
  report.add("input", "", arguments.vectors);
  report.add("vectors", "vectors", reader.rows());
  report.add("dim", "dim", reader.dim());
  codec->describe(report, false);
  codec->describe_search(report);
  report.add("mse", "mse", result.error.mse());
  report.add("relative_error", "relative error", result.error.relative_error());
  codec->add_usage(report, result.counts);
  report.print(arguments.common);
}

}  // namespace

void add_eval(CLI::App& program, Run& run) {
  auto* command = program.add_subcommand("eval", "Measure the error of a codec on vectors");
  const auto arguments = std::make_shared<EvalArguments>();
  add_codec_argument(*command, arguments->codec);
  add_vectors_argument(*command, arguments->vectors);
  add_beam_option(*command, arguments->beam);
  add_key_option(*command, arguments->key);
  add_metric_override(*command, arguments->metric);
  add_memory_option(*command, arguments->memory);
  add_common_options(*command, arguments->common);
  command->footer(kEvalFooter);
  command->callback([&run, arguments] { run = [arguments] { run_eval(*arguments); }; });
}

}  // namespace torchvq::cli
