#include <torchvq/ops/projected_residual_encode.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/metric.h"
#include "detail/op_handle.h"
#include "detail/residual_arguments.h"
#include "ops/capture.h"
#include "ops/projected_residual_encode.h"

namespace torchvq {

namespace detail {

namespace {

constexpr auto kProjectedResidualEncode = "projected_residual_encode";

void check_part(const char* name, const at::Tensor& part, const at::Tensor& x) {
  check_floating(kProjectedResidualEncode, name, part);
  check_same_device(kProjectedResidualEncode, "x", x, name, part);
}

/// Expects shape (rows, columns) or (rows, columns, 1).
void check_weight(const char* name, const at::Tensor& weight, const c10::SymInt& rows,
                  const c10::SymInt& columns, const at::Tensor& x) {
  check_part(name, weight, x);
  const bool matches = (weight.dim() == 2 || (weight.dim() == 3 && weight.sym_size(2) == 1)) &&
                       weight.sym_size(0) == rows && weight.sym_size(1) == columns;
  TORCH_CHECK_VALUE(matches, kProjectedResidualEncode, ": expected ", name, " to have shape [",
                    rows, ", ", columns, "], with or without an axis of 1 behind, but got shape ",
                    weight.sym_sizes());
}

void check_bias(const char* name, const at::Tensor& bias, const c10::SymInt& size,
                const at::Tensor& x) {
  check_part(name, bias, x);
  TORCH_CHECK_VALUE(bias.dim() == 1 && bias.sym_size(0) == size, kProjectedResidualEncode,
                    ": expected ", name, " to have shape [", size, "], but got shape ",
                    bias.sym_sizes());
}

void check_codes(const at::Tensor& codebook, const at::Tensor& first, const at::Tensor& x) {
  check_part("codebook", codebook, x);
  check_rank(kProjectedResidualEncode, "codebook", codebook, 2, "(K, D)");
  // Kernels use 32-bit numbers for codes and for their places in padded panels.
  TORCH_CHECK_VALUE(
      codebook.sym_size(0) >= 1 && codebook.sym_size(0) <= (int64_t{1} << 30) &&
          codebook.sym_size(1) >= 1,
      kProjectedResidualEncode,
      ": expected codebooks to have 1 to 2^30 codes of at least 1 feature, but got shape ",
      codebook.sym_sizes());
  check_size(kProjectedResidualEncode, "codebook", codebook, 1, first.sym_size(1),
             "features of the first codebook");
}

/// An empty tensor (B, T, size) with the memory layout of x (B, T, C).
at::Tensor lying_as(const at::Tensor& x, const c10::SymInt& size, at::ScalarType dtype) {
  const auto options = x.options().dtype(dtype);
  const auto batch = x.sym_size(0), tokens = x.sym_size(1);
  // A single token is contiguous in either layout; its stride decides.
  const bool columns =
      x.sym_stride(1) == 1 && x.sym_size(2) != 1 && x.transpose(1, 2).is_contiguous();
  if (!columns) return x.new_empty_symint({batch, tokens, size}, options);
  return x.new_empty_symint({batch, size, tokens}, options).transpose(1, 2);
}

std::vector<at::Tensor> in_dtype(at::TensorList tensors, at::ScalarType dtype) {
  std::vector<at::Tensor> converted;
  converted.reserve(tensors.size());
  for (const auto& tensor : tensors) converted.push_back(contiguous_as(tensor, dtype));
  return converted;
}

}  // namespace

void check_projected_residual_encode(const ProjectedResidualArguments& arguments) {
  const auto& [x, codebooks, in_weights, in_biases, out_weights, out_biases, metric, zero_code] =
      arguments;
  check_floating(kProjectedResidualEncode, "x", x);
  check_rank(kProjectedResidualEncode, "x", x, 3, "(B, T, C)");
  const auto features = x.sym_size(2);
  TORCH_CHECK_VALUE(features >= 1, kProjectedResidualEncode,
                    ": expected x to have at least 1 feature, but got shape ", x.sym_sizes());
  TORCH_CHECK_VALUE(!codebooks.empty(), kProjectedResidualEncode,
                    ": expected codebooks to have at least 1 level, but got none");
  const std::initializer_list<std::pair<const char*, at::TensorList>> lists = {
      {"in_weights", in_weights},
      {"in_biases", in_biases},
      {"out_weights", out_weights},
      {"out_biases", out_biases}};
  for (const auto& [name, list] : lists) {
    TORCH_CHECK_VALUE(list.size() == codebooks.size(), kProjectedResidualEncode, ": expected ",
                      name, " to have ", codebooks.size(), " tensors (levels), but got ",
                      list.size());
  }
  for (size_t n = 0; n < codebooks.size(); ++n) {
    check_codes(codebooks[n], codebooks[0], x);
    const auto dim = codebooks[n].sym_size(1);
    check_weight("in_weights", in_weights[n], dim, features, x);
    check_bias("in_biases", in_biases[n], dim, x);
    check_weight("out_weights", out_weights[n], features, dim, x);
    check_bias("out_biases", out_biases[n], features, x);
  }
  parse_metric(kProjectedResidualEncode, metric);
  TORCH_CHECK_VALUE(std::isfinite(zero_code), kProjectedResidualEncode,
                    ": expected zero_code to be finite, but got ", zero_code);
}

at::ScalarType projected_residual_dtype(const ProjectedResidualArguments& arguments) {
  bool wide = arguments.x.scalar_type() == at::kDouble;
  for (const auto& list : {arguments.codebooks, arguments.in_weights, arguments.in_biases,
                           arguments.out_weights, arguments.out_biases}) {
    wide |= std::any_of(list.begin(), list.end(),
                        [](const at::Tensor& t) { return t.scalar_type() == at::kDouble; });
  }
  return wide ? at::kDouble : at::kFloat;
}

ProjectedResidualTensors projected_residual_results(const ProjectedResidualArguments& arguments) {
  const auto& x = arguments.x;
  const auto dtype = projected_residual_dtype(arguments);
  const c10::SymInt levels(static_cast<int64_t>(arguments.codebooks.size()));
  return {lying_as(x, x.sym_size(2), dtype), lying_as(x, levels, at::kLong),
          lying_as(x, levels * arguments.codebooks[0].sym_size(1), dtype),
          lying_as(x, levels, dtype)};
}

ProjectedResidualProblem::ProjectedResidualProblem(const ProjectedResidualArguments& arguments)
    : cosine(is_cosine(kProjectedResidualEncode, arguments.metric)),
      zero_code(cosine ? arguments.zero_code : 0) {
  check_projected_residual_encode(arguments);
  const auto dtype = projected_residual_dtype(arguments);
  x = arguments.x.to(dtype);
  codebooks = in_dtype(arguments.codebooks, dtype);
  in_weights = in_dtype(arguments.in_weights, dtype);
  in_biases = in_dtype(arguments.in_biases, dtype);
  out_weights = in_dtype(arguments.out_weights, dtype);
  out_biases = in_dtype(arguments.out_biases, dtype);
  tokens = x.size(1), features = x.size(2), dim = codebooks[0].size(1);
}

}  // namespace detail

namespace ops {

ProjectedResidualEncodeOutput projected_residual_encode(
    const at::Tensor& x, const ProjectedLevels& levels,
    const ProjectedResidualEncodeOptions& options) {
  using Signature = detail::ProjectedResidualTensors(const at::Tensor&, at::TensorList,
                                                     at::TensorList, at::TensorList, at::TensorList,
                                                     at::TensorList, std::string_view, double);
  static auto op = detail::op_handle<Signature>("torchvq::projected_residual_encode");
  auto [quantized, indices, latents, errors] =
      op.call(x, levels.codebooks, levels.in_weights, levels.in_biases, levels.out_weights,
              levels.out_biases, options.metric(), options.zero_code());
  return {std::move(quantized), std::move(indices), std::move(latents), std::move(errors)};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "projected_residual_encode(Tensor x, Tensor[] codebooks, Tensor[] in_weights, "
      "Tensor[] in_biases, Tensor[] out_weights, Tensor[] out_biases, *, "
      "str metric='euclidean', float zero_code=0.0) -> "
      "(Tensor quantized, Tensor indices, Tensor latents, Tensor errors)",
      torchvq::detail::searches());
}
