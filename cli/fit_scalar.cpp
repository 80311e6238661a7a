// The methods fsq and lfq of torchvq fit: projections around scalar levels and signs.
#include <torchvq/fit/fit_scalar_codec.h>
#include <torchvq/io/scalar_codec.h>

#include <c10/util/StringUtil.h>

#include <bit>
#include <memory>
#include <utility>

#include "fit_method.h"
#include "progress.h"
#include "scalar.h"

namespace torchvq::cli {
namespace {

constexpr int64_t kMostCodes = int64_t{1} << 62;

std::vector<int64_t> fsq_levels(const FitOptions& given) {
  TORCH_CHECK_VALUE(!given.quantizer_levels.empty(),
                    "--quantizer-levels is required with --method fsq");
  TORCH_CHECK_VALUE(given.codebook_size == 0,
                    "--codebook-size: expected none with --method fsq, whose codes are the product "
                    "of --quantizer-levels, but got ",
                    given.codebook_size);
  int64_t size = 1;
  for (const auto level : given.quantizer_levels) {
    TORCH_CHECK_VALUE(level >= 3 && level <= 65536,
                      "--quantizer-levels: expected levels of 3 to 65536, but got ", level);
    TORCH_CHECK_VALUE(size <= kMostCodes / level,
                      "--quantizer-levels: expected a product of at most 2^62");
    size *= level;
  }
  return given.quantizer_levels;
}

std::vector<int64_t> lfq_levels(const FitOptions& given) {
  const auto size = static_cast<uint64_t>(given.codebook_size);
  TORCH_CHECK_VALUE(
      given.codebook_size >= 2 && given.codebook_size <= kMostCodes && std::has_single_bit(size),
      "--codebook-size: expected a power of two of 2 to 2^62 with --method lfq, but "
      "got ",
      given.codebook_size);
  return std::vector<int64_t>(static_cast<size_t>(std::countr_zero(size)), 2);
}

void check_unused(const FitOptions& given) {
  TORCH_CHECK_VALUE(given.levels == 1, "--levels: expected 1 with --method ", given.method,
                    ", but got ", given.levels);
  TORCH_CHECK_VALUE(given.beam == 1, "--beam: expected 1 with --method ", given.method,
                    ", but got ", given.beam);
  TORCH_CHECK_VALUE(given.refine == 0, "--refine: expected 0 with --method ", given.method,
                    ", but got ", given.refine);
  TORCH_CHECK_VALUE(given.refine_noise == 0, "--refine-noise: expected 0 with --method ",
                    given.method, ", but got ", given.refine_noise);
  TORCH_CHECK_VALUE(given.metric.empty(), "--metric: expected none with --method ", given.method,
                    ", but got ", given.metric);
  TORCH_CHECK_VALUE(given.iterations < 0, "--iterations: expected none with --method ",
                    given.method, ", but got ", given.iterations);
}

class FitScalar : public FitMethod {
 public:
  explicit FitScalar(fit::FitScalarOptions options) : options_(std::move(options)) {}

  void check_vectors(const BlockReader& reader) const override {
    const auto features = options_.num_codebooks * static_cast<int64_t>(options_.levels.size());
    TORCH_CHECK_VALUE(features <= reader.dim(),
                      options_.method == "fsq" ? "--quantizer-levels" : "--codebook-size",
                      ": expected at most ", reader.dim(),
                      options_.method == "fsq" ? " levels" : " bits",
                      " over all groups, the dimension of ", reader.source().array().path(),
                      ", but got ", features);
  }

  int64_t fewest_rows() const override { return 1; }
  std::string fewest_rows_name() const override { return "one vector"; }
  bool keeps_vectors() const override { return true; }

  std::string options() const override {
    std::string levels;
    for (const auto level : options_.levels) levels += std::to_string(level) + ",";
    return c10::str("--method ", options_.method, " with levels ", levels, " --groups ",
                    options_.num_codebooks, " --seed ", options_.seed);
  }

  void fit(const functional::VectorBlocks& vectors, bool quiet) override {
    Progress progress("fit", 2 * vectors.rows, quiet);
    fit_ = fit::fit_scalar_codec(vectors, options_, [&](int64_t pass, int64_t rows) {
      progress.update(pass * vectors.rows + rows, pass == 0 ? "sampling" : "measuring");
    });
    progress.finish();
  }

  void save(io::OutputFile& file) const override { io::save_scalar_codec(file, fit_.codec); }

  void describe(Report& report) const override { add_scalar(report, fit_.codec, false); }

  void add_result(Report& report) const override {
    report.add("mse", "mse", fit_.evaluation.error.mse());
    report.add("relative_error", "relative error", fit_.evaluation.error.relative_error());
    add_scalar_usage(report, fit_.codec, fit_.evaluation.counts);
  }

 private:
  fit::FitScalarOptions options_;
  fit::FitScalarOutput fit_;
};

}  // namespace

std::unique_ptr<FitMethod> fit_scalar(const FitOptions& options) {
  check_unused(options);
  fit::FitScalarOptions fit;
  fit.method = options.method;
  fit.levels = options.method == "fsq" ? fsq_levels(options) : lfq_levels(options);
  fit.num_codebooks = options.groups;
  fit.seed = options.seed;
  return std::make_unique<FitScalar>(std::move(fit));
}

}  // namespace torchvq::cli
