// What `torchvq fit` does with vectors, by method. The command reads them, reports and writes.
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

/// What the user asked for. 0 and empty: not given.
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

  /// Throws c10::ValueError where the options and the vectors of this process do not go together.
  virtual void check_vectors(const BlockReader& reader) const = 0;
  /// Vectors of all processes that it takes at least, and what they are called: "codes (256)".
  virtual int64_t fewest_rows() const = 0;
  virtual std::string fewest_rows_name() const = 0;
  /// Whether vectors that fit into the memory are kept between passes.
  virtual bool keeps_vectors() const = 0;
  /// All that the result depends on besides the vectors, for a person to read.
  virtual std::string options() const = 0;

  /// All processes together.
  virtual void fit(const functional::VectorBlocks& vectors, bool quiet) = 0;

  /// What was fitted.
  virtual void save(io::OutputFile& file) const = 0;
  virtual void describe(Report& report) const = 0;
  virtual void add_result(Report& report) const = 0;
};

/// Throws c10::ValueError for options that the method does not have.
std::unique_ptr<FitMethod> fit_method(const FitOptions& options);

/// k-means: VectorQuantize, ResidualVQ, GroupedResidualVQ.
std::unique_ptr<FitMethod> fit_codebooks(const FitOptions& options);

/// Projections around scalar levels and signs: FSQ, LFQ.
std::unique_ptr<FitMethod> fit_scalar(const FitOptions& options);

}  // namespace torchvq::cli
