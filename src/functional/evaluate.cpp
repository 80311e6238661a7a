#include <torchvq/functional/evaluate.h>

#include <tuple>

#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <torchvq/functional/layout.h>
#include <torchvq/functional/quantize.h>

namespace torchvq::functional {

EvaluateOutput evaluate(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                        const std::optional<at::Tensor>& mask, const EvaluateOptions& options) {
  const bool channel_first = options.channel_first(), separate = options.separate();
  const int64_t heads = options.heads();
  const auto packed = pack_tokens(x, channel_first);
  const auto batch = packed.sym_size(0), count = packed.sym_size(1);
  const auto tokens = split_heads(mask ? fill_masked(packed, *mask) : packed, heads, separate);
  std::optional<at::Tensor> head_mask;
  if (mask) head_mask = split_mask(*mask, heads, separate);

  const auto found = quantize(tokens, codebook, rng, head_mask,
                              QuantizeOptions().metric(options.metric()).estimator("none"));
  auto quantized =
      merge_heads(found.quantized, batch, count, heads, separate).flatten(2).to(x.scalar_type());
  if (mask) {
    const auto padding = options.zeros_for_masked() ? std::nullopt : std::optional(packed);
    quantized = fill_padding(quantized, *mask, padding);
  }
  auto indices = merge_heads(found.indices, batch, count, heads, separate);
  if (heads == 1) indices = indices.squeeze(2);
  return {unpack_tokens(quantized, x.sym_sizes(), channel_first),
          unpack_positions(indices, x.sym_sizes(), channel_first),
          at::zeros({}, found.inputs.options())};
}

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> evaluate_op(
    const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
    const std::optional<at::Tensor>& mask, std::string_view metric, int64_t heads, bool separate,
    bool channel_first, bool zeros_for_masked) {
  const auto output = evaluate(x, codebook, rng, mask,
                               EvaluateOptions()
                                   .metric(std::string(metric))
                                   .heads(heads)
                                   .separate(separate)
                                   .channel_first(channel_first)
                                   .zeros_for_masked(zeros_for_masked));
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
