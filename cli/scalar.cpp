#include "scalar.h"

#include <cmath>

namespace torchvq::cli {

void add_scalar(Report& report, const fit::ScalarCodec& codec, bool show_size) {
  report.add("method", "method", codec.method);
  if (codec.method == "fsq") report.add("quantizer_levels", "quantizer levels", codec.levels);
  const bool single = codec.num_codebooks == 1;
  const bool counted = codec.codebook_size() <= fit::kMostCounted;
  report.add("codebook_size", single && counted && !show_size ? "" : "codebook size",
             codec.codebook_size());
  report.add("groups", single ? "" : "groups", codec.num_codebooks);
}

void add_scalar_usage(Report& report, const fit::ScalarCodec& codec,
                      const std::vector<at::Tensor>& counts) {
  if (counts.empty()) {
    const auto bits = std::log2(static_cast<double>(codec.codebook_size()));
    report.add("bits_per_vector", "bits per vector",
               bits * static_cast<double>(codec.num_codebooks));
    return;
  }
  std::vector<CodesOf> columns;
  columns.reserve(counts.size());
  for (int64_t c = 0; c < codec.num_codebooks; ++c) {
    columns.push_back({"group " + std::to_string(c), c, 0});
  }
  report.add_usage(columns, counts);
}

}  // namespace torchvq::cli
