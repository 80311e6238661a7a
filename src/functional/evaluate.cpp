#include <torchvq/functional/evaluate.h>

#include <tuple>

#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <torchvq/functional/quantize.h>

namespace torchvq::functional {

EvaluateOutput evaluate(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                        const std::optional<at::Tensor>& mask, const EvaluateOptions& options) {
  const auto& layout = options.layout();
  const auto split = split_tokens(x, mask, layout);
  const auto found = quantize(split.tokens, codebook, rng, split.mask,
                              QuantizeOptions().metric(options.metric()).estimator("none"));
  return {restore_tokens(found.quantized, x, mask, layout),
          restore_positions(found.indices, x, layout), at::zeros({}, found.inputs.options())};
}

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> evaluate_op(
    const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
    const std::optional<at::Tensor>& mask, std::string_view metric, int64_t heads, bool separate,
    bool channel_first, bool zeros_for_masked) {
  const auto output = evaluate(x, codebook, rng, mask,
                               EvaluateOptions()
                                   .metric(std::string(metric))
                                   .layout(TokenLayout()
                                               .heads(heads)
                                               .separate(separate)
                                               .channel_first(channel_first)
                                               .zeros_for_masked(zeros_for_masked)));
  return {output.quantized, output.indices, output.loss};
}

}  // namespace

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "evaluate(Tensor x, Tensor codebook, Tensor rng, *, Tensor? mask=None, "
      "str metric='euclidean', int heads=1, bool separate=False, bool channel_first=False, "
      "bool zeros_for_masked=True) -> (Tensor quantized, Tensor indices, Tensor loss)",
      torchvq::functional::evaluate_op);
}
