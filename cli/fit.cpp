// torchvq fit: vectors -> codec.
#include <torchvq/functional/fit_stack.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/output_file.h>

#include <c10/util/StringUtil.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>

#include "blocks.h"
#include "commands.h"
#include "options.h"
#include "processes.h"
#include "progress.h"
#include "report.h"
#include "stack.h"

namespace torchvq::cli {
namespace {

struct FitArguments {
  CommonOptions common;
  std::string vectors;
  std::string output;
  std::string key;
  int64_t memory = kDefaultMemory;
  int64_t timeout = 1800;
  functional::FitStackOptions fit;
};

constexpr int64_t kMostCodebooks = 4096;

constexpr auto kFooter = R"(
The codebook is fitted with k-means on all vectors: starting from k-means on a sample, each pass moves every code to
the mean of its vectors, until no code moves or --iterations are done. The result depends on the vectors, the seed
and the options above, not on --memory or --threads.

--levels Q fits Q codebooks, each to what the ones before have left of the vectors: Q codes describe a vector.
--groups G splits the features into G equal parts, each with levels of its own: G * Q codes describe a vector.

Under torchrun several processes fit one codec: each reads its slice of the file, or its own file where the name holds
{rank}; the result is that of one process with all vectors, to the bit, and rank 0 writes it. TORCHVQ_SYNC=0 in the
environment keeps a process alone.

The codec holds the state of torchvq.VectorQuantize(dim, codebook_size), with --levels that of
torchvq.ResidualVQ(dim, num_quantizers, codebook_size), with --groups that of torchvq.GroupedResidualVQ. In Python:
  vq.load_state_dict(safetensors.torch.load_file("codec.safetensors"))

Examples:
  torchvq fit vectors.npy --codebook-size 1024 -o codec.safetensors
  torchvq fit vectors.npy --codebook-size 256 --levels 8 --beam 8 -o residual.safetensors
  torchvq fit vectors.npy --codebook-size 256 --levels 4 --groups 2 -o grouped.safetensors
  torchrun --nproc-per-node 2 --no-python torchvq fit part-{rank}.npy --codebook-size 1024 -o codec.safetensors
  torchvq fit embeddings.safetensors --key encoder.out --codebook-size 4096 --metric cosine -o codec.safetensors
  torchvq fit huge.npy --codebook-size 16384 --iterations 10 --memory 4G --json -o codec.safetensors > fit.json)";

int64_t columns_of(const FitArguments& arguments) {
  return arguments.fit.levels * arguments.fit.groups;
}

std::string note_of(const FitArguments& arguments, int64_t column, int64_t pass) {
  const auto& fit = arguments.fit;
  std::string note;
  if (column == columns_of(arguments)) return "measuring";
  if (fit.groups > 1) note += "group " + std::to_string(column / fit.levels) + " ";
  if (columns_of(arguments) > 1) note += "level " + std::to_string(column % fit.levels) + " ";
  const auto passes = fit.level.iterations;
  if (pass == 0) return note + "sampling";
  if (pass > passes) return note + "counting";
  return note + "pass " + std::to_string(pass) + "/" + std::to_string(passes);
}

functional::FitStackOutput fit_with_progress(const functional::VectorBlocks& vectors,
                                             const FitArguments& arguments, bool quiet) {
  // Of each codebook one pass draws the sample, one counts; at the end one measures the result.
  const auto passes = arguments.fit.level.iterations + 2;
  Progress progress("fit", vectors.rows * (columns_of(arguments) * passes + 1), quiet);
  const auto show = [&](int64_t column, int64_t pass, int64_t rows) {
    progress.update((column * passes + pass) * vectors.rows + rows,
                    note_of(arguments, column, pass));
  };
  auto result = functional::fit_stack(vectors, arguments.fit, show);
  progress.finish();
  return result;
}

// What the file of this process must fulfil whatever the others have.
void check_fit(const FitArguments& arguments, const BlockReader& reader) {
  const auto columns = columns_of(arguments);
  const auto groups = arguments.fit.groups, beam = arguments.fit.beam;
  TORCH_CHECK_VALUE(reader.dim() % groups == 0, "--groups: expected a divisor of the dimension ",
                    reader.dim(), " of ", reader.source().array().path(), ", but got ", groups);
  TORCH_CHECK_VALUE(arguments.fit.level.metric == "euclidean" || columns == 1,
                    "--metric: expected euclidean with --levels or --groups above 1, but got ",
                    arguments.fit.level.metric);
  const auto paths = std::pow(static_cast<double>(arguments.fit.level.codebook_size),
                              static_cast<double>(arguments.fit.levels));
  TORCH_CHECK_VALUE(static_cast<double>(beam) <= paths, "--beam: expected at most ", paths,
                    ", the ways through the levels, but got ", beam);
}

void check_rows(const FitArguments& arguments, const Processes& processes, int64_t rows) {
  const auto size = arguments.fit.level.codebook_size;
  if (rows >= size) return;
  if (!processes.first()) throw FailedElsewhere();
  TORCH_CHECK_VALUE(false, arguments.vectors, ": expected at least as many vectors as codes (",
                    size, "), but it holds ", rows);
}

// All that the result depends on, besides the vectors.
std::string options_of(const FitArguments& arguments) {
  const auto& level = arguments.fit.level;
  return c10::str("--codebook-size ", level.codebook_size, " --levels ", arguments.fit.levels,
                  " --groups ", arguments.fit.groups, " --beam ", arguments.fit.beam, " --metric ",
                  level.metric, " --iterations ", level.iterations, " --seed ", level.seed);
}

io::CodecStack codec_of(const functional::FitStackOutput& fit) {
  io::CodecStack codec;
  size_t column = 0;
  for (const auto& group : fit.stack.groups) {
    auto& levels = codec.groups.emplace_back();
    for (const auto& codebook : group) {
      levels.push_back(io::make_codec(codebook, fit.counts[column++], fit.stack.metric));
    }
  }
  return codec;
}

struct FitResult {
  const functional::FitStackOutput& fit;
  int64_t vectors;
  int64_t dim;
  bool streamed;
  int processes;
  double seconds;
};

void report_fit(const FitArguments& arguments, const FitResult& result) {
  const auto& fit = result.fit;
  Report report("fit");
  report.add("input", "", arguments.vectors);
  report.add("output", "wrote", arguments.output);
  report.add("vectors", "vectors", result.vectors);
  report.add("dim", "dim", result.dim);
  add_stack(report, fit.stack, false);
  report.add("metric", "metric", arguments.fit.level.metric);
  report.add("seed", "", arguments.fit.level.seed);
  report.add("streamed", "", result.streamed);
  report.add("processes", result.processes > 1 ? "processes" : "", result.processes);
  report.add("iterations", "iterations", fit.iterations, fit.converged ? "(settled)" : "");
  report.add("converged", "", fit.converged);
  if (fit.stack.columns() > 1) report.add("beam", "beam", arguments.fit.beam);
  report.add("mse", "mse", fit.evaluation.error.mse());
  report.add("relative_error", "relative error", fit.evaluation.error.relative_error());
  add_usage(report, fit.stack, fit.evaluation.counts);
  report.add("seconds", "time", result.seconds, "s");
  report.print(arguments.common);
}

class Fit {
 public:
  Fit(const FitArguments& arguments, const Processes& processes)
      : arguments_(arguments), processes_(processes), path_(processes.own_path(arguments.vectors)) {
    arguments_.fit.memory = arguments.memory;
  }

  void run() {
    const auto shard = processes_.agree([this] { return prepare(); });
    auto vectors = reader_->blocks();
    vectors.shard = shard;
    check_rows(arguments_, processes_, vectors.all_rows());
    const bool quiet = arguments_.common.quiet || !processes_.first();
    const auto fit = fit_with_progress(vectors, arguments_, quiet);
    processes_.on_first([&] {
      io::save_codec_stack(*file_, codec_of(fit));
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
      report_fit(arguments_, {fit, vectors.all_rows(), vectors.dim, reader_->streams(),
                              processes_.size(), seconds.count()});
    });
  }

 private:
  ShardNote prepare() {
    if (processes_.first()) check_output(arguments_.output, ".safetensors", {path_});
    const bool slices = path_ == arguments_.vectors;
    // Levels keep what remains of the vectors instead.
    const bool keep = columns_of(arguments_) == 1;
    reader_.emplace(path_, arguments_.key, arguments_.memory, slices ? processes_.rank() : 0,
                    slices ? processes_.size() : 1, keep);
    check_fit(arguments_, *reader_);
    // Opened before the work, so that a place that cannot be written is known now.
    if (processes_.first()) {
      if (processes_.alone()) check_rows(arguments_, processes_, reader_->rows());
      file_.emplace(arguments_.output);
    }
    return {reader_->rows(), reader_->dim(), options_of(arguments_)};
  }

  using Clock = std::chrono::steady_clock;

  FitArguments arguments_;
  const Processes& processes_;
  std::string path_;
  Clock::time_point start_ = Clock::now();
  std::optional<BlockReader> reader_;
  std::optional<io::OutputFile> file_;
};

void run_fit(const FitArguments& arguments) {
  const Processes processes(std::chrono::seconds(arguments.timeout));
  processes.together([&] { Fit(arguments, processes).run(); });
}

}  // namespace

void add_fit(CLI::App& program, Run& run) {
  auto* command = program.add_subcommand("fit", "Fit codebooks to vectors and write a codec");
  const auto arguments = std::make_shared<FitArguments>();
  auto& fit = arguments->fit.level;
  add_vectors_argument(*command, arguments->vectors);
  add_output_option(*command, arguments->output, "Codec to write (.safetensors)");
  command->add_option("-k,--codebook-size", fit.codebook_size, "Number of codes (of each level)")
      ->required()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->option_text("N (required)");
  command
      ->add_option("--levels", arguments->fit.levels,
                   "Residual levels: codes that describe a vector one after the other (default: 1)")
      ->check(CLI::Range(int64_t{1}, kMostCodebooks))
      ->option_text("N");
  command
      ->add_option("--groups", arguments->fit.groups,
                   "Parts of the features that are described each by itself (default: 1)")
      ->check(CLI::Range(int64_t{1}, kMostCodebooks))
      ->option_text("N");
  add_beam_option(*command, arguments->fit.beam);
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
  command
      ->add_option("--timeout", arguments->timeout,
                   "Seconds that one process waits for another (default: 1800)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->option_text("SECONDS");
  add_common_options(*command, arguments->common);
  command->footer(kFooter);
  command->callback([&run, arguments] { run = [arguments] { run_fit(*arguments); }; });
}

}  // namespace torchvq::cli
