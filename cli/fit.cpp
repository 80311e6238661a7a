// torchvq fit: vectors -> codec.
#include <torchvq/functional/fit_codebook.h>
#include <torchvq/functional/usage.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/output_file.h>

#include <chrono>
#include <memory>

#include "blocks.h"
#include "commands.h"
#include "options.h"
#include "progress.h"
#include "report.h"

namespace torchvq::cli {
namespace {

struct FitArguments {
  CommonOptions common;
  std::string vectors;
  std::string output;
  std::string key;
  int64_t memory = kDefaultMemory;
  functional::FitCodebookOptions fit;
};

constexpr auto kFooter = R"(
The codebook is fitted with k-means on all vectors: starting from k-means on a sample, each pass moves every code to
the mean of its vectors, until no code moves or --iterations are done. The result depends on the vectors, the seed
and the options above, not on --memory or --threads.

The codec holds the state of torchvq.VectorQuantize(dim, codebook_size); Python loads it with
  vq.load_state_dict(safetensors.torch.load_file("codec.safetensors"))

Examples:
  torchvq fit vectors.npy --codebook-size 1024 -o codec.safetensors
  torchvq fit embeddings.safetensors --key encoder.out --codebook-size 4096 --metric cosine -o codec.safetensors
  torchvq fit huge.npy --codebook-size 16384 --iterations 10 --memory 4G --json -o codec.safetensors > fit.json)";

functional::FitCodebookOutput fit_with_progress(BlockReader& reader,
                                                const FitArguments& arguments) {
  const auto passes = arguments.fit.iterations;
  // One pass draws the sample, one measures the result.
  Progress progress("fit", reader.rows() * (passes + 2), arguments.common.quiet);
  const auto show = [&](int64_t pass, int64_t rows) {
    const auto note = pass == 0 ? "sampling"
                      : pass > passes
                          ? "measuring"
                          : "pass " + std::to_string(pass) + "/" + std::to_string(passes);
    progress.update(pass * reader.rows() + rows, note);
  };
  auto result = functional::fit_codebook(reader.blocks(), arguments.fit, show);
  progress.finish();
  return result;
}

void run_fit(const FitArguments& arguments) {
  check_output(arguments.output, ".safetensors", {arguments.vectors});
  const auto start = std::chrono::steady_clock::now();
  BlockReader reader(arguments.vectors, arguments.key, arguments.memory);
  const auto size = arguments.fit.codebook_size;
  TORCH_CHECK_VALUE(reader.rows() >= size, arguments.vectors,
                    ": expected at least as many vectors as codes (", size, "), but it holds ",
                    reader.rows());
  // Opened before the work, so that a place that cannot be written is known now.
  io::OutputFile file(arguments.output);
  const auto fit = fit_with_progress(reader, arguments);
  io::save_codec(file, io::make_codec(fit.codebook, fit.evaluation.counts, arguments.fit.metric));

  Report report("fit");
  report.add("input", "", arguments.vectors);
  report.add("output", "wrote", arguments.output);
  report.add("vectors", "vectors", reader.rows());
  report.add("dim", "dim", reader.dim());
  report.add("codebook_size", "", size);
  report.add("metric", "metric", arguments.fit.metric);
  report.add("seed", "", arguments.fit.seed);
  report.add("streamed", "", reader.streams());
  report.add("iterations", "iterations", fit.iterations, fit.converged ? "(settled)" : "");
  report.add("converged", "", fit.converged);
  report.add("mse", "mse", fit.evaluation.error.mse());
  report.add("relative_error", "relative error", fit.evaluation.error.relative_error());
  report.add_usage(functional::codebook_usage(fit.evaluation.counts));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  report.add("seconds", "time", seconds.count(), "s");
  report.print(arguments.common);
}

}  // namespace

void add_fit(CLI::App& program, Run& run) {
  auto* command = program.add_subcommand("fit", "Fit a codebook to vectors and write a codec");
  const auto arguments = std::make_shared<FitArguments>();
  auto& fit = arguments->fit;
  add_vectors_argument(*command, arguments->vectors);
  add_output_option(*command, arguments->output, "Codec to write (.safetensors)");
  command->add_option("-k,--codebook-size", fit.codebook_size, "Number of codes")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->option_text("N (required)");
  command
      ->add_option("--metric", fit.metric,
                   "euclidean, or cosine for unit vectors (default: euclidean)")
      ->check(CLI::IsMember({"euclidean", "cosine"}))
      ->option_text("NAME");
  command->add_option("--iterations", fit.iterations, "Most passes over the vectors (default: 25)")
      ->check(CLI::Range(int64_t{0}, int64_t{1000000}))
      ->option_text("N");
  command->add_option("--seed", fit.seed, "Seed of the first codebook (default: 0)")
      ->option_text("N");
  add_key_option(*command, arguments->key);
  add_memory_option(*command, arguments->memory);
  add_common_options(*command, arguments->common);
  command->footer(kFooter);
  command->callback([&run, arguments] { run = [arguments] { run_fit(*arguments); }; });
}

}  // namespace torchvq::cli
