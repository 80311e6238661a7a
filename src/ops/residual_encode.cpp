#include <torchvq/ops/residual_encode.h>

#include <algorithm>

#include <torch/library.h>

#include "detail/metric.h"
#include "detail/op_handle.h"
#include "detail/residual_arguments.h"
#include "ops/capture.h"
#include "ops/prepare_codes.h"
#include "ops/residual_encode.h"

namespace torchvq {

namespace detail {

namespace {

constexpr auto kResidualEncode = "residual_encode";

}  // namespace

void check_residual_encode(const at::Tensor& x, at::TensorList codebooks, std::string_view metric,
                           const std::optional<at::Tensor>& depth,
                           const std::optional<at::Tensor>& mask,
                           std::optional<at::TensorList> prepared) {
  check_residual_arguments(kResidualEncode, x, codebooks, depth, mask);
  parse_metric(kResidualEncode, metric);
  if (prepared) check_prepared(kResidualEncode, *prepared, codebooks);
}

ResidualEncodeProblem::ResidualEncodeProblem(const at::Tensor& x_, at::TensorList codebooks_,
                                             std::string_view metric,
                                             const std::optional<at::Tensor>& depth,
                                             const std::optional<at::Tensor>& mask_,
                                             std::optional<at::TensorList> prepared_) {
  check_residual_encode(x_, codebooks_, metric, depth, mask_, prepared_);
  const auto dtype = residual_dtype(x_, codebooks_);
  x = contiguous_as(x_, dtype);
  if (mask_) mask = mask_->contiguous();
  cosine = is_cosine(kResidualEncode, metric);
  levels = static_cast<int64_t>(codebooks_.size());
  const auto used = static_cast<size_t>(levels_in_use(kResidualEncode, depth, levels));
  const auto searched = codebooks_.slice(0, used);
  given_heads_ = x.size(0), given_tokens_ = x.size(1);
  const bool shared = std::all_of(searched.begin(), searched.end(), is_shared);
  if (shared && given_heads_ != 1) {
    x = x.view({1, x.size(0) * x.size(1), x.size(2)});
    if (mask.defined()) mask = mask.view({1, mask.numel()});
  }
  heads = x.size(0), tokens = x.size(1), dim = x.size(2);
  codebooks.reserve(used);
  for (const auto& codebook : searched) {
    codebooks.push_back(contiguous_as(shared ? codebook : expand_to_heads(codebook, heads), dtype));
  }
  if (!prepared_) return;
  for (const auto& copy : prepared_->slice(0, used)) prepared.push_back(copy.contiguous());
}

ResidualEncodeTensors ResidualEncodeProblem::of_all_heads(const at::Tensor& quantized,
                                                          const at::Tensor& indices) const {
  if (heads == given_heads_) return {quantized, indices};
  return {quantized.view({given_heads_, given_tokens_, dim}),
          indices.view({given_heads_, given_tokens_, levels})};
}

}  // namespace detail

namespace ops {

ResidualEncodeOutput residual_encode(const at::Tensor& x, at::TensorList codebooks,
                                     const ResidualEncodeOptions& options) {
  using Signature = detail::ResidualEncodeTensors(
      const at::Tensor&, at::TensorList, std::string_view, const std::optional<at::Tensor>&,
      const std::optional<at::Tensor>&, std::optional<at::TensorList>);
  static auto op = detail::op_handle<Signature>("torchvq::residual_encode");
  std::optional<at::TensorList> prepared;
  if (!options.prepared().empty()) prepared = options.prepared();
  auto [quantized, indices] =
      op.call(x, codebooks, options.metric(), options.depth(), options.mask(), prepared);
  return {std::move(quantized), std::move(indices)};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "residual_encode(Tensor x, Tensor[] codebooks, *, str metric='euclidean', "
      "Tensor? depth=None, Tensor? mask=None, Tensor[]? prepared=None) -> (Tensor quantized, "
      "Tensor indices)",
      torchvq::detail::searches());
}
