// torchvq fit: vectors -> codec.
#include <torchvq/io/output_file.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "blocks.h"
#include "commands.h"
#include "fit_method.h"
#include "options.h"
#include "processes.h"
#include "report.h"
#include "stack.h"

namespace torchvq::cli {
namespace {

struct FitArguments {
  CommonOptions common;
  std::string vectors;
  std::string output;
  std::string key;
  int64_t timeout = 1800;
  FitOptions fit;
};

constexpr int64_t kMostCodebooks = 4096;
constexpr int64_t kMostPasses = 1000000;

constexpr auto kFitFooter = R"(
The codebook is fitted with k-means on all vectors: starting from k-means on a sample, each pass moves every code to
the mean of its vectors, until no code moves or --iterations passes are done. The result depends on the vectors, the
seed and the options above, not on --memory or --threads.

--levels Q fits Q codebooks, each to the residuals of the ones before: Q codes describe a vector.
--groups G splits the features into G equal parts, each with its own levels: G * Q codes describe a vector.

--refine N then refits all levels of a group together: up to N times, vectors are encoded with a beam of 5, or --beam
if that is wider, and the codebooks are set to the least-squares codes for the chosen indices. Each refit takes three
times as long as a pass of k-means. They lower the error by a tenth or more at the same bits, most of all with a beam.

--method fsq rounds features to --quantizer-levels (finite scalar quantization), --method lfq takes the signs of
log2(codebook size) features (lookup-free quantization): no codebook, but linear maps from and to the vectors, fitted
in closed form on a sample of 65536. --groups G gives G codes per vector, all from one map. The codec is the state
of torchvq.FSQ(levels, dim, num_codebooks) or torchvq.LFQ(dim, codebook_size, num_codebooks, has_projections=True).

Under torchrun several processes fit one codec: each reads its slice of the file, or its own file if the name contains
{rank}. The result has the bits of one process with all vectors, and rank 0 writes it. With TORCHVQ_SYNC=0 in the
environment a process runs alone.

The codec is the state of torchvq.VectorQuantize(dim, codebook_size), with --levels that of
torchvq.ResidualVQ(dim, num_quantizers, codebook_size), with --groups that of torchvq.GroupedResidualVQ. In Python:
  vq.load_state_dict(safetensors.torch.load_file("codec.safetensors"))

Examples:
  torchvq fit vectors.npy --codebook-size 1024 -o codec.safetensors
  torchvq fit vectors.npy --codebook-size 256 --levels 8 --beam 8 -o residual.safetensors
  torchvq fit vectors.npy --codebook-size 256 --levels 8 --refine 16 -o refined.safetensors
  torchvq fit vectors.npy --codebook-size 256 --levels 4 --groups 2 -o grouped.safetensors
  torchvq fit vectors.npy --method fsq --quantizer-levels 8,5,5,5 --groups 2 -o fsq.safetensors
  torchvq fit vectors.npy --method lfq --codebook-size 65536 -o lfq.safetensors
  torchrun --nproc-per-node 2 --no-python torchvq fit part-{rank}.npy --codebook-size 1024 -o codec.safetensors
  torchvq fit embeddings.safetensors --key encoder.out --codebook-size 4096 --metric cosine -o codec.safetensors
  torchvq fit huge.npy --codebook-size 16384 --iterations 10 --memory 4G --json -o codec.safetensors > fit.json)";

// The vectors of this process, and, on the first process, the output file.
class Fit {
 public:
  Fit(const FitArguments& arguments, const Processes& processes)
      : arguments_(arguments),
        processes_(processes),
        path_(processes.own_path(arguments.vectors)),
        method_(fit_method(arguments.fit)) {}

  void run() {
    const auto shard = processes_.agree([this] { return prepare(); });
    auto vectors = reader().blocks();
    vectors.shard = shard;
    streams_ = reader().streams();
    check_rows(vectors.all_rows());
    method_->fit(vectors, arguments_.common.quiet || !processes_.first());
    processes_.on_first([&] {
      method_->save(file_.value());
      report(vectors);
    });
  }

 private:
  using Clock = std::chrono::steady_clock;

  // Opened by prepare(), whose errors are reported to the other processes.
  // NOLINTNEXTLINE(bugprone-unchecked-optional-access)
  BlockReader& reader() { return reader_.value(); }

  ShardNote prepare() {
    if (processes_.first())
      check_output(arguments_.output, ".safetensors", {path_}, arguments_.common);
    check_is_not_input(arguments_.output, path_);
    const bool slices = arguments_.vectors.find("{rank}") == std::string::npos;
    reader_.emplace(path_, arguments_.key, arguments_.fit.memory, slices ? processes_.rank() : 0,
                    slices ? processes_.size() : 1, method_->keeps_vectors());
    method_->check_vectors(reader());
    // Opened before the work, so that an unwritable output fails at once.
    if (processes_.first()) {
      if (processes_.alone()) check_rows(reader().rows());
      file_.emplace(arguments_.output);
    }
    return {reader().rows(), reader().dim(), command()};
  }

  // The names as given: in a script whose processes are out of step, fits of different vectors would
  // otherwise be one. A name that a shell completes on each process would be taken for one file, of
  // which each process reads its slice.
  std::string command() const {
    const auto key = arguments_.key.empty() ? "" : " --key " + arguments_.key;
    return arguments_.vectors + key + " -o " + arguments_.output + " " + method_->options();
  }

  void check_rows(int64_t rows) const {
    const auto fewest = method_->fewest_rows();
    if (rows >= fewest) return;
    if (!processes_.first()) throw FailedElsewhere();
    TORCH_CHECK_VALUE(false, arguments_.vectors, ": expected at least ",
                      method_->fewest_rows_name(), ", but it holds ", rows);
  }

  void report(const functional::VectorBlocks& vectors) const {
    const std::chrono::duration<double> seconds = Clock::now() - start_;
    Report report("fit");
    report.add("input", "", arguments_.vectors);
    report.add("output", "wrote", arguments_.output);
    report.add("vectors", "vectors", vectors.all_rows());
    report.add("dim", "dim", vectors.dim);
    method_->describe(report);
    report.add("seed", "", arguments_.fit.seed);
    report.add("streamed", "", streams_);
    report.add("processes", processes_.size() > 1 ? "processes" : "", processes_.size());
    method_->add_result(report);
    report.add("seconds", "time", seconds.count(), "s");
    report.print(arguments_.common);
  }

  const FitArguments& arguments_;
  const Processes& processes_;
  std::string path_;
  std::unique_ptr<FitMethod> method_;
  Clock::time_point start_ = Clock::now();
  std::optional<BlockReader> reader_;
  bool streams_ = false;
  std::optional<io::OutputFile> file_;
};

void run_fit(const FitArguments& arguments) {
  const Processes processes(std::chrono::seconds(arguments.timeout));
  processes.together([&] { Fit(arguments, processes).run(); });
}

void add_method_options(CLI::App& command, FitOptions& fit) {
  command
      .add_option("--method", fit.method,
                  "vq: codebooks by k-means; fsq: rounded features; lfq: their signs (default: vq)")
      ->check(CLI::IsMember({"vq", "fsq", "lfq"}))
      ->option_text("NAME");
  add_number_option(command, "-k,--codebook-size", fit.codebook_size,
                    "Number of codes (of each level); required except for fsq", 1,
                    int64_t{1} << 62);
  command
      .add_option_function<std::string>(
          "--quantizer-levels",
          [&fit](const std::string& text) { fit.quantizer_levels = parse_levels(text); },
          "Levels of each feature, with --method fsq: 8,5,5,5")
      ->option_text("L,L,...");
  add_number_option(command, "--levels", fit.levels,
                    "Residual levels: number of codes per vector and group (default: 1)", 1,
                    kMostCodebooks);
  add_number_option(command, "--groups", fit.groups,
                    "Groups of features, each with its own codes (default: 1)", 1, kMostCodebooks);
}

}  // namespace

std::unique_ptr<FitMethod> fit_method(const FitOptions& options) {
  TORCH_CHECK_VALUE(options.method == "fsq" || options.quantizer_levels.empty(),
                    "--quantizer-levels: expected none with --method ", options.method,
                    ", but got ", at::IntArrayRef(options.quantizer_levels));
  return options.method == "vq" ? fit_codebooks(options) : fit_scalar(options);
}

void add_fit(CLI::App& program, Run& run) {
  auto* command = program.add_subcommand("fit", "Fit codebooks to vectors and write a codec");
  const auto arguments = std::make_shared<FitArguments>();
  auto& fit = arguments->fit;
  add_vectors_argument(*command, arguments->vectors);
  add_output_option(*command, arguments->output, "Codec to write (.safetensors)");
  add_method_options(*command, fit);
  add_beam_option(*command, fit.beam);
  add_number_option(*command, "--refine", fit.refine,
                    "At most this many joint refits after k-means (default: 0, none)", 0,
                    kMostPasses);
  command
      ->add_option("--refine-noise", fit.refine_noise,
                   "Noise of the codes in refits; try 0.3 with 12 or more (default: 0)")
      ->check(CLI::Range(0.0, 100.0))
      // The comparisons of a range let it through.
      ->check([](const std::string& text) {
        const double number = std::strtod(text.c_str(), nullptr);
        return std::isnan(number) ? text + " is not a number" : std::string();
      })
      ->option_text("X");
  command
      ->add_option("--metric", fit.metric,
                   "euclidean, or cosine for unit vectors (default: euclidean)")
      ->check(CLI::IsMember({"euclidean", "cosine"}))
      ->option_text("NAME");
  add_number_option(*command, "--iterations", fit.iterations,
                    "At most this many passes (default: 25)", 0, kMostPasses);
  add_number_option(*command, "--seed", fit.seed, "Seed of the first codebook (default: 0)",
                    std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  add_key_option(*command, arguments->key);
  add_memory_option(*command, fit.memory);
  add_number_option(*command, "--timeout", arguments->timeout,
                    "Seconds that one process waits for another (default: 1800)", 1,
                    int64_t{1} << 30)
      ->option_text("SECONDS");
  add_common_options(*command, arguments->common);
  command->footer(kFitFooter);
  command->callback([&run, arguments] { run = [arguments] { run_fit(*arguments); }; });
}

}  // namespace torchvq::cli
