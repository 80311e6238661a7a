#include <torchvq/ops/residual_encode.h>

#include <torch/library.h>

#include "detail/metric.h"
#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/residual_encode.h"

namespace torchvq {

namespace detail {

namespace {

constexpr auto kOp = "residual_encode";

int64_t levels_in_use(const std::optional<at::Tensor>& depth, int64_t levels) {
  if (!depth) return levels;
  const auto used = depth->item<int64_t>();
  TORCH_CHECK_VALUE(used >= 1 && used <= levels, kOp, ": expected depth to be in [1, ", levels,
                    "], but got ", used);
  return used;
}

}  // namespace

void check_residual_encode(const at::Tensor& x, at::TensorList codebooks, std::string_view metric,
                           const std::optional<at::Tensor>& depth,
                           const std::optional<at::Tensor>& mask) {
  check_tokens(kOp, "x", x);
  TORCH_CHECK_VALUE(x.sym_size(2) >= 1, kOp, ": expected x to have at least 1 dim, but got shape ",
                    x.sym_sizes());
  TORCH_CHECK_VALUE(!codebooks.empty(), kOp,
                    ": expected codebooks to have at least 1 level, but got none");
  for (const auto& codebook : codebooks) check_codebook_of(kOp, codebook, x);
  parse_metric(kOp, metric);
  check_mask(kOp, mask, x);
  if (depth) {
    check_dtype(kOp, "depth", *depth, at::kLong);
    TORCH_CHECK_VALUE(depth->sym_numel() == 1, kOp,
                      ": expected depth to be one number, but got shape ", depth->sym_sizes());
  }
}

at::ScalarType residual_encode_dtype(const at::Tensor& x, at::TensorList codebooks) {
  bool wide = x.scalar_type() == at::kDouble;
  for (const auto& codebook : codebooks) wide |= codebook.scalar_type() == at::kDouble;
  return wide ? at::kDouble : at::kFloat;
}

ResidualEncodeProblem::ResidualEncodeProblem(const at::Tensor& x_, at::TensorList codebooks_,
                                             std::string_view metric,
                                             const std::optional<at::Tensor>& depth,
                                             const std::optional<at::Tensor>& mask_) {
  check_residual_encode(x_, codebooks_, metric, depth, mask_);
  const auto dtype = residual_encode_dtype(x_, codebooks_);
  x = x_.to(dtype).contiguous();
  if (mask_) mask = mask_->contiguous();
  cosine = parse_metric(kOp, metric) == Metric::kCosine;
  heads = x.size(0), tokens = x.size(1), dim = x.size(2);
  levels = static_cast<int64_t>(codebooks_.size());
  const auto used = static_cast<size_t>(levels_in_use(depth, levels));
  for (size_t n = 0; n < used; ++n) codebooks.push_back(codebooks_[n].to(dtype).contiguous());
}

}  // namespace detail

namespace ops {

ResidualEncodeOutput residual_encode(const at::Tensor& x, at::TensorList codebooks,
                                     const ResidualEncodeOptions& options) {
  using Signature = detail::ResidualEncodeTensors(
      const at::Tensor&, at::TensorList, std::string_view, const std::optional<at::Tensor>&,
      const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::residual_encode");
  auto [quantized, indices] =
      op.call(x, codebooks, options.metric(), options.depth(), options.mask());
  return {std::move(quantized), std::move(indices)};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "residual_encode(Tensor x, Tensor[] codebooks, *, str metric='euclidean', "
      "Tensor? depth=None, Tensor? mask=None) -> (Tensor quantized, Tensor indices)");
}
