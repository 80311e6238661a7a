// Encoding, decoding and evaluation with a codec of any method.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/fit/evaluation.h>
#include <torchvq/functional/vector_blocks.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "report.h"

namespace torchvq::cli {

class Codec {
 public:
  virtual ~Codec() = default;

  virtual int64_t dim() const = 0;
  /// Number of codes of a vector.
  virtual int64_t columns() const = 0;
  virtual int64_t codebook_size(int64_t column) const = 0;

  /// (N, D), float32, to (N, columns), int64, and back.
  virtual at::Tensor encode(const at::Tensor& block) const = 0;
  virtual at::Tensor decode(const at::Tensor& codes) const = 0;
  virtual fit::Evaluation evaluate(const functional::VectorBlocks& vectors,
                                   const std::function<void(int64_t rows)>& progress) const = 0;

  /// Reports codes, levels and groups. With `show_size` false, the size of a single codebook is
  /// written only to JSON, for reports that show it with the usage.
  virtual void describe(Report& report, bool show_size) const = 0;
  /// The options of the search: metric and beam.
  virtual void describe_search(Report& report) const = 0;
  virtual void add_usage(Report& report, const std::vector<at::Tensor>& counts) const = 0;

  virtual int64_t largest_codebook() const;
};

/// Options for loading a codec and searching with it.
struct CodecOptions {
  std::string metric;  // as load_codec(); empty takes the file's
  int64_t beam = 1;
};

/// Throws as load_codec_stack() and load_scalar_codec(), and c10::ValueError for a beam or metric
/// that the codec does not support.
std::unique_ptr<Codec> load_codec(const std::string& path, const CodecOptions& options = {});

}  // namespace torchvq::cli
