#include <torchvq/ops/nearest_code.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include "detail/checks.h"
#include "detail/metric.h"
#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "ops/capture.h"
#include "ops/nearest_code.h"

namespace torchvq {

namespace detail {

namespace {

constexpr auto kNearestCode = "nearest_code";

void check_codebook(const at::Tensor& x, const at::Tensor& codebook) {
  TORCH_CHECK_VALUE(x.dim() == 2 || x.dim() == 3, kNearestCode,
                    ": expected x to have 2 or 3 dimensions (N, D) or (H, N, D), but got shape ",
                    x.sym_sizes());
  TORCH_CHECK_VALUE(
      codebook.dim() == 2 || codebook.dim() == 3, kNearestCode,
      ": expected codebook to have 2 or 3 dimensions (K, D) or (H, K, D), but got shape ",
      codebook.sym_sizes());
  check_size(kNearestCode, "codebook", codebook, -1, x.sym_size(-1), "dim of x");
  check_has_dim(kNearestCode, x);
  TORCH_CHECK_VALUE(codebook.sym_size(-2) >= 1, kNearestCode,
                    ": expected codebook to have at least 1 code, but got shape ",
                    codebook.sym_sizes());
  if (codebook.dim() == 3) {
    const auto heads = x.dim() == 3 ? x.sym_size(0) : c10::SymInt(1);
    TORCH_CHECK_VALUE(codebook.sym_size(0) == 1 || codebook.sym_size(0) == heads, kNearestCode,
                      ": expected codebook to have 1 or ", heads, " heads, but got shape ",
                      codebook.sym_sizes());
  }
}

void check_bias(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& bias) {
  check_floating(kNearestCode, "bias", bias);
  check_same_device(kNearestCode, "codebook", codebook, "bias", bias);
  TORCH_CHECK_VALUE(bias.dim() == 1 || bias.dim() == 2, kNearestCode,
                    ": expected bias to have 1 or 2 dimensions (K,) or (H, K), but got shape ",
                    bias.sym_sizes());
  check_size(kNearestCode, "bias", bias, -1, codebook.sym_size(-2), "codes of codebook");
  if (bias.dim() == 2) {
    const auto heads = x.dim() == 3 ? x.sym_size(0) : c10::SymInt(1);
    TORCH_CHECK_VALUE(bias.sym_size(0) == 1 || bias.sym_size(0) == heads, kNearestCode,
                      ": expected bias to have 1 or ", heads, " heads, but got shape ",
                      bias.sym_sizes());
  }
}

void check_tokens_mask(const at::Tensor& x, const at::Tensor& mask) {
  check_dtype(kNearestCode, "mask", mask, at::kBool);
  const auto shape = x.sym_sizes().slice(0, static_cast<size_t>(x.dim() - 1));
  TORCH_CHECK_VALUE(mask.sym_sizes() == shape, kNearestCode,
                    ": expected mask to have one value per token of x, shape ", shape, ", but got ",
                    mask.sym_sizes());
  check_same_device(kNearestCode, "x", x, "mask", mask);
}

}  // namespace

void check_has_dim(const char* op, const at::Tensor& x) {
  TORCH_CHECK_VALUE(x.sym_size(-1) >= 1, op, ": expected x to have at least 1 dim, but got shape ",
                    x.sym_sizes());
}

void check_nearest_code(const at::Tensor& x, const at::Tensor& codebook, std::string_view metric,
                        const std::optional<at::Tensor>& bias, std::optional<int64_t> topk,
                        const std::optional<at::Tensor>& mask) {
  check_floating(kNearestCode, "x", x);
  check_floating(kNearestCode, "codebook", codebook);
  check_codebook(x, codebook);
  check_same_device(kNearestCode, "x", x, "codebook", codebook);
  parse_metric(kNearestCode, metric);
  // Kernels use 32-bit numbers for codes and for their places in padded panels.
  TORCH_CHECK_VALUE(codebook.sym_size(-2) <= (int64_t{1} << 30), kNearestCode,
                    ": expected codebook to have at most 2^30 codes, but got shape ",
                    codebook.sym_sizes());
  if (bias) check_bias(x, codebook, *bias);
  check_topk(kNearestCode, topk, codebook);
  if (mask) check_tokens_mask(x, *mask);
}

void fill_padding_of(NearestCodeTensors& found, const std::optional<at::Tensor>& mask,
                     std::optional<int64_t> topk) {
  if (!mask) return;
  auto& [indices, codes, distances] = found;
  const auto padding = topk ? mask->logical_not().unsqueeze(-1) : mask->logical_not();
  indices.masked_fill_(padding, -1);
  if (codes.dim() > indices.dim()) codes.masked_fill_(padding.unsqueeze(-1), 0);
  if (distances.dim() == indices.dim() && distances.numel() == indices.numel()) {
    distances.masked_fill_(padding, 0);
  }
}

c10::SymDimVector nearest_code_shape(const at::Tensor& x, std::optional<int64_t> topk) {
  const auto sizes = x.sym_sizes();
  c10::SymDimVector shape(sizes.begin(), sizes.end() - 1);
  if (topk) shape.emplace_back(*topk);
  return shape;
}

std::vector<int64_t> nearest_code_sizes(const at::Tensor& x, std::optional<int64_t> topk) {
  return C10_AS_INTARRAYREF_SLOW(nearest_code_shape(x, topk)).vec();
}

NearestCodeProblem::NearestCodeProblem(const at::Tensor& x_, const at::Tensor& codebook_,
                                       std::string_view metric,
                                       const std::optional<at::Tensor>& bias_,
                                       std::optional<int64_t> topk,
                                       const std::optional<at::Tensor>& mask_) {
  check_nearest_code(x_, codebook_, metric, bias_, topk, mask_);
  // Members are set after the check. NOLINTBEGIN(cppcoreguidelines-prefer-member-initializer)
  dtype = value_dtype(x_, codebook_);
  cosine = metric == "cosine";
  k = topk.value_or(1);
  dim = x_.size(-1);
  size = codebook_.size(-2);
  // NOLINTEND(cppcoreguidelines-prefer-member-initializer)
  codebook = codebook_.to(dtype).reshape({-1, size, dim}).contiguous();
  if (bias_) bias = bias_->to(dtype).reshape({-1, size}).contiguous();
  const bool shared = codebook.size(0) == 1 && (!bias.defined() || bias.size(0) == 1);
  heads = shared || x_.dim() == 2 ? 1 : x_.size(0);
  tokens = shared ? x_.numel() / dim : x_.size(-2);
  x = x_.to(dtype).reshape({heads, tokens, dim}).contiguous();
  if (mask_) mask = mask_->reshape({heads, tokens}).contiguous();
}

at::Tensor NearestCodeProblem::head_codebook(int64_t head) const {
  return codebook.select(0, codebook.size(0) == 1 ? 0 : head);
}

at::Tensor NearestCodeProblem::head_bias(int64_t head) const {
  return bias.defined() ? bias.select(0, bias.size(0) == 1 ? 0 : head) : bias;
}

NearestCodeProblem NearestCodeProblem::of_rows(int64_t head, std::vector<int64_t>& rows) const {
  auto own = *this;
  const auto count = static_cast<int64_t>(rows.size());
  const auto places = at::from_blob(rows.data(), {count}, at::kLong);
  own.x = x.select(0, head).index_select(0, places).unsqueeze(0);
  own.codebook = head_codebook(head).unsqueeze(0);
  if (bias.defined()) own.bias = head_bias(head).unsqueeze(0);
  own.mask = at::Tensor();
  own.heads = 1;
  own.tokens = count;
  return own;
}

}  // namespace detail

namespace ops {

NearestCodeOutput nearest_code(const at::Tensor& x, const at::Tensor& codebook,
                               const NearestCodeOptions& options) {
  using Signature = detail::NearestCodeTensors(
      const at::Tensor&, const at::Tensor&, std::string_view, const std::optional<at::Tensor>&,
      std::optional<int64_t>, bool, bool, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::nearest_code");
  auto [indices, codes, distances] =
      op.call(x, codebook, options.metric(), options.bias(), options.topk(), options.return_codes(),
              options.return_distances(), options.mask());
  return {std::move(indices), std::move(codes), std::move(distances)};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "nearest_code(Tensor x, Tensor codebook, *, str metric=\"euclidean\", Tensor? bias=None, "
      "int? topk=None, "
      "bool return_codes=False, bool return_distances=False, Tensor? mask=None) -> (Tensor "
      "indices, "
      "Tensor codes, Tensor distances)",
      torchvq::detail::searches());
}
