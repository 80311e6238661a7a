// The method vq of torchvq fit: codebooks by k-means.
#include <torchvq/fit/fit_stack.h>
#include <torchvq/io/codec.h>

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "fit_method.h"
#include "progress.h"
#include "stack.h"

namespace torchvq::cli {
namespace {

constexpr int64_t kIterations = 25;

fit::FitStackOptions stack_options(const FitOptions& given) {
  fit::FitStackOptions options;
  options.level.codebook_size = given.codebook_size;
  options.level.iterations = given.iterations < 0 ? kIterations : given.iterations;
  options.level.seed = given.seed;
  options.level.metric = given.metric.empty() ? "euclidean" : given.metric;
  options.levels = given.levels;
  options.groups = given.groups;
  options.beam = given.beam;
  options.refine = given.refine;
  options.refine_noise = given.refine_noise;
  options.memory = given.memory;
  return options;
}

io::CodecStack codec_of(const fit::FitStackOutput& fit) {
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

class FitCodebooks : public FitMethod {
 public:
  explicit FitCodebooks(fit::FitStackOptions options) : options_(std::move(options)) {}

  void check_vectors(const BlockReader& reader) const override {
    const auto& path = reader.source().array().path();
    TORCH_CHECK_VALUE(reader.dim() % options_.groups == 0,
                      "--groups: expected a divisor of the dimension ", reader.dim(), " of ", path,
                      ", but got ", options_.groups);
    TORCH_CHECK_VALUE(options_.level.metric == "euclidean" || columns() == 1,
                      "--metric: expected euclidean with --levels or --groups above 1, but got ",
                      options_.level.metric);
    TORCH_CHECK_VALUE(options_.level.metric == "euclidean" || options_.refine == 0,
                      "--metric: expected euclidean with --refine, but got ",
                      options_.level.metric);
    const auto paths = std::pow(static_cast<double>(options_.level.codebook_size),
                                static_cast<double>(options_.levels));
    TORCH_CHECK_VALUE(static_cast<double>(options_.beam) <= paths, "--beam: expected at most ",
                      paths, ", the ways through the levels, but got ", options_.beam);
  }

  int64_t fewest_rows() const override { return options_.level.codebook_size; }
  std::string fewest_rows_name() const override {
    return c10::str("as many vectors as codes (", fewest_rows(), ")");
  }
  // With several columns, fit keeps residuals instead of the vectors.
  bool keeps_vectors() const override { return columns() == 1; }

  std::string options() const override {
    const auto& level = options_.level;
    return c10::str("--codebook-size ", level.codebook_size, " --levels ", options_.levels,
                    " --groups ", options_.groups, " --beam ", options_.beam, " --refine ",
                    options_.refine, " --refine-noise ", options_.refine_noise, " --metric ",
                    level.metric, " --iterations ", level.iterations, " --seed ", level.seed);
  }

  void fit(const functional::VectorBlocks& vectors, bool quiet) override {
    // For each codebook, one pass draws the sample and one counts; a last pass measures the result.
    const auto passes = options_.level.iterations + 2;
    const auto all = columns() * passes + refined() * searches() + 1;
    Progress progress("fit", vectors.rows * all, quiet);
    const auto show = [&](int64_t column, int64_t pass, int64_t rows) {
      const auto after = std::max<int64_t>(column - columns(), 0);
      const auto before = (column - after) * passes + after * searches();
      progress.update((before + pass) * vectors.rows + rows, note_of(column, pass));
    };
    fit_ = fit::fit_stack(vectors, options_, show);
    progress.finish();
  }

  void save(io::OutputFile& file) const override {
    TORCH_CHECK_VALUE(std::isfinite(fit_.evaluation.error.squared_error()),
                      "--levels: expected vectors that float32 holds as sums of codes, but some "
                      "sums are larger");
    io::save_codec_stack(file, codec_of(fit_));
  }

  void describe(Report& report) const override {
    add_stack(report, fit_.stack, false);
    report.add("metric", "metric", options_.level.metric);
  }

  void add_result(Report& report) const override {
    report.add("iterations", "iterations", fit_.iterations, fit_.converged ? "(settled)" : "");
    report.add("converged", "", fit_.converged);
    if (options_.refine > 0) add_refits(report);
    if (fit_.stack.columns() > 1) report.add("beam", "beam", options_.beam);
    report.add("mse", "mse", fit_.evaluation.error.mse());
    report.add("relative_error", "relative error", fit_.evaluation.error.relative_error());
    add_usage(report, fit_.stack, fit_.evaluation.counts);
  }

 private:
  int64_t columns() const { return options_.levels * options_.groups; }

  // Number of groups to refine, and the largest number of searches of each.
  int64_t refined() const { return options_.refine > 0 ? options_.groups : 0; }
  int64_t searches() const { return options_.refine + 2; }

  void add_refits(Report& report) const {
    report.add("refits", "refits", fit_.refits);
    report.add("mse_before_refits", "mse before refits", fit_.mse_before_refits);
    report.add("mse_after_refits", "mse after refits", fit_.mse_after_refits);
  }

  std::string note_of(int64_t column, int64_t pass) const {
    std::string note;
    if (column == columns() + refined()) return "measuring";
    if (column >= columns()) return refining_note(column - columns(), pass);
    if (options_.groups > 1) note += "group " + std::to_string(column / options_.levels) + " ";
    if (columns() > 1) note += "level " + std::to_string(column % options_.levels) + " ";
    const auto passes = options_.level.iterations;
    if (pass == 0) return note + "sampling";
    if (pass > passes) return note + "counting";
    return note + "pass " + std::to_string(pass) + "/" + std::to_string(passes);
  }

  std::string refining_note(int64_t group, int64_t search) const {
    const auto note = "refining, search " + std::to_string(search + 1);
    return options_.groups > 1 ? "group " + std::to_string(group) + " " + note : note;
  }

  fit::FitStackOptions options_;
  fit::FitStackOutput fit_;
};

}  // namespace

std::unique_ptr<FitMethod> fit_codebooks(const FitOptions& options) {
  TORCH_CHECK_VALUE(options.codebook_size >= 1, "--codebook-size is required");
  TORCH_CHECK_VALUE(options.refine > 0 || options.refine_noise == 0,
                    "--refine-noise: expected 0 without --refine, but got ", options.refine_noise);
  return std::make_unique<FitCodebooks>(stack_options(options));
}

}  // namespace torchvq::cli
