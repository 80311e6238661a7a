#include "codec.h"

#include <torchvq/fit/evaluate_stack.h>
#include <torchvq/fit/projected_codec.h>
#include <torchvq/fit/scalar_codec.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/projected_codec.h>
#include <torchvq/io/scalar_codec.h>

#include <algorithm>
#include <utility>

#include "projected.h"
#include "scalar.h"
#include "stack.h"

namespace torchvq::cli {
namespace {

class StackCodec : public Codec {
 public:
  StackCodec(fit::CodebookStack stack, int64_t beam) : stack_(std::move(stack)), beam_(beam) {}

  int64_t dim() const override { return stack_.dim(); }
  int64_t columns() const override { return stack_.columns(); }
  int64_t codebook_size(int64_t column) const override { return stack_.codebook(column).size(0); }
  at::Tensor encode(const at::Tensor& block) const override {
    return fit::encode_stack(block, stack_, beam_);
  }
  at::Tensor decode(const at::Tensor& codes) const override {
    return fit::decode_stack(codes, stack_);
  }
  fit::Evaluation evaluate(const functional::VectorBlocks& vectors,
                           const std::function<void(int64_t rows)>& progress) const override {
    return fit::evaluate_stack(vectors, stack_, beam_, progress);
  }
  void describe(Report& report, bool show_size) const override {
    add_stack(report, stack_, show_size);
  }
  void describe_search(Report& report) const override {
    report.add("metric", "metric", stack_.metric);
    if (columns() > 1) report.add("beam", "beam", beam_);
  }
  void add_usage(Report& report, const std::vector<at::Tensor>& counts) const override {
    cli::add_usage(report, stack_, counts);
  }

 private:
  fit::CodebookStack stack_;
  int64_t beam_;
};

class ScalarLevelsCodec : public Codec {
 public:
  explicit ScalarLevelsCodec(fit::ScalarCodec codec) : codec_(std::move(codec)) {}

  int64_t dim() const override { return codec_.dim; }
  int64_t columns() const override { return codec_.num_codebooks; }
  int64_t codebook_size(int64_t /*column*/) const override { return codec_.codebook_size(); }
  // Without a walk over columns, of which a file may claim any number.
  int64_t largest_codebook() const override { return codec_.codebook_size(); }
  at::Tensor encode(const at::Tensor& block) const override {
    return fit::encode_scalar(block, codec_);
  }
  at::Tensor decode(const at::Tensor& codes) const override {
    return fit::decode_scalar(codes, codec_);
  }
  fit::Evaluation evaluate(const functional::VectorBlocks& vectors,
                           const std::function<void(int64_t rows)>& progress) const override {
    return fit::evaluate_scalar(vectors, codec_, progress);
  }
  void describe(Report& report, bool show_size) const override {
    add_scalar(report, codec_, show_size);
  }
  void describe_search(Report& /*report*/) const override {}
  void add_usage(Report& report, const std::vector<at::Tensor>& counts) const override {
    add_scalar_usage(report, codec_, counts);
  }

 private:
  fit::ScalarCodec codec_;
};

class ProjectedLevelsCodec : public Codec {
 public:
  explicit ProjectedLevelsCodec(fit::ProjectedCodec codec) : codec_(std::move(codec)) {}

  int64_t dim() const override { return codec_.dim; }
  int64_t columns() const override { return codec_.columns(); }
  int64_t codebook_size(int64_t column) const override { return codec_.codebook(column).size(0); }
  at::Tensor encode(const at::Tensor& block) const override {
    return fit::encode_projected(block, codec_);
  }
  at::Tensor decode(const at::Tensor& codes) const override {
    return fit::decode_projected(codes, codec_);
  }
  fit::Evaluation evaluate(const functional::VectorBlocks& vectors,
                           const std::function<void(int64_t rows)>& progress) const override {
    return fit::evaluate_projected(vectors, codec_, progress);
  }
  void describe(Report& report, bool show_size) const override {
    add_projected(report, codec_, show_size);
  }
  void describe_search(Report& report) const override {
    report.add("metric", "metric", codec_.metric);
  }
  void add_usage(Report& report, const std::vector<at::Tensor>& counts) const override {
    add_projected_usage(report, codec_, counts);
  }

 private:
  fit::ProjectedCodec codec_;
};

// Rejects options that only codebooks without maps support.
void check_no_search_options(const std::string& path, const CodecOptions& options,
                             const std::string& metric) {
  TORCH_CHECK_VALUE(options.metric.empty() || options.metric == metric, path,
                    ": expected a codec with metric ", options.metric, ", but got ", metric);
  TORCH_CHECK_VALUE(options.beam == 1, "--beam: expected 1 for ", path,
                    ", a codec with maps around its codebooks, but got ", options.beam);
}

}  // namespace

int64_t Codec::largest_codebook() const {
  int64_t largest = 0;
  for (int64_t column = 0; column < columns(); ++column)
    largest = std::max(largest, codebook_size(column));
  return largest;
}

std::unique_ptr<Codec> load_codec(const std::string& path, const CodecOptions& options) {
  const io::SafetensorsFile file(path);
  if (io::holds_projected_codec(file)) {
    auto codec = io::load_projected_codec(path);
    check_no_search_options(path, options, codec.metric);
    return std::make_unique<ProjectedLevelsCodec>(std::move(codec));
  }
  if (!io::holds_scalar_codec(file)) {
    auto stack = stack_of(io::load_codec_stack(path, options.metric));
    check_beam(options.beam, stack, path);
    return std::make_unique<StackCodec>(std::move(stack), options.beam);
  }
  TORCH_CHECK_VALUE(options.metric.empty(), "--metric: expected none for ", path,
                    ", a codec without codebooks, but got ", options.metric);
  TORCH_CHECK_VALUE(options.beam == 1, "--beam: expected 1 for ", path,
                    ", a codec without levels to search, but got ", options.beam);
  return std::make_unique<ScalarLevelsCodec>(io::load_scalar_codec(path));
}

}  // namespace torchvq::cli
