// The methods of `torchvq fit`. The command reads vectors, reports and writes files.
#pragma once

#include <torchvq/functional/vector_blocks.h>
#include <torchvq/io/output_file.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "blocks.h"
#include "report.h"

namespace torchvq::cli {

/// The user's options. Not given: codebook_size 0, iterations -1, quantizer_levels and metric empty.
struct FitOptions {
  std::string method = "vq";
  int64_t codebook_size = 0;
  std::vector<int64_t> quantizer_levels;
  int64_t levels = 1;
  int64_t groups = 1;
  int64_t beam = 1;
  int64_t refine = 0;
  double refine_noise = 0;
  std::string metric;
  int64_t iterations = -1;
  int64_t seed = 0;
  int64_t memory = kDefaultMemory;
};

class FitMethod {
 public:
  virtual ~FitMethod() = default;

  /// Throws c10::ValueError if the options do not fit the vectors of this process.
  virtual void check_vectors(const BlockReader& reader) const = 0;
  /// The smallest number of vectors of all processes, and its name in errors: "one vector".
  virtual int64_t fewest_rows() const = 0;
  virtual std::string fewest_rows_name() const = 0;
  /// Whether vectors that fit into memory are kept between passes.
  virtual bool keeps_vectors() const = 0;
  /// A readable description of everything except the vectors that the result depends on.
  virtual std::string options() const = 0;

  /// Fits; all processes take part.
  virtual void fit(const functional::VectorBlocks& vectors, bool quiet) = 0;

  /// The fitted codec.
  virtual void save(io::OutputFile& file) const = 0;
  virtual void describe(Report& report) const = 0;
  virtual void add_result(Report& report) const = 0;
};

/// Throws c10::ValueError for options that the method does not support.
std::unique_ptr<FitMethod> fit_method(const FitOptions& options);

/// k-means: VectorQuantize, ResidualVQ, GroupedResidualVQ.
std::unique_ptr<FitMethod> fit_codebooks(const FitOptions& options);

/// Projections around scalar levels and signs: FSQ, LFQ.
std::unique_ptr<FitMethod> fit_scalar(const FitOptions& options);

}  // namespace torchvq::cli
