#include <torchvq/fit/scalar_codec.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <torchvq/ops/scalar_decode.h>
#include <torchvq/ops/scalar_quantize.h>

#include "fit/evaluate_blocks.h"
#include "functional/read_block.h"

namespace torchvq::fit {
namespace {

at::Tensor project(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto wide = x.to(at::kDouble);
  if (!weight.defined()) return wide;
  return at::addmm(bias.to(at::kDouble), wide, weight.to(at::kDouble).t());
}

at::Tensor split_features(const at::Tensor& z, const ScalarCodec& codec) {
  return z.view({z.size(0), codec.num_codebooks, static_cast<int64_t>(codec.levels.size())});
}

/// Numbers codes as the classes do: the first feature of FSQ varies fastest, that of LFQ slowest.
at::Tensor number_signs(const at::Tensor& z, const ScalarCodec& codec) {
  return ops::scalar_indices(z.gt(0).to(at::kLong).flip({-1}), codec.levels);
}

at::Tensor codes_of(const at::Tensor& indices, const ScalarCodec& codec) {
  if (codec.method == "fsq")
    return ops::scalar_decode(indices, codec.levels, /*symmetric=*/false, at::kDouble);
  return ops::scalar_decode(indices, codec.levels, /*symmetric=*/true, at::kDouble).flip({-1});
}

}  // namespace

at::Tensor encode_scalar(const at::Tensor& x, const ScalarCodec& codec) {
  check_scalar_codec("encode_scalar", codec);
  TORCH_CHECK_VALUE(x.dim() == 2 && x.size(1) == codec.dim,
                    "encode_scalar: expected x to have shape (N, ", codec.dim, "), but got ",
                    x.sizes());
  const auto z = split_features(project(x, codec.in_weight, codec.in_bias), codec);
  if (codec.method == "lfq") return number_signs(z, codec);
  return ops::scalar_quantize(z, codec.levels).second;
}

at::Tensor decode_scalar(const at::Tensor& codes, const ScalarCodec& codec) {
  check_scalar_codec("decode_scalar", codec);
  TORCH_CHECK_VALUE(codes.dim() == 2 && codes.size(1) == codec.num_codebooks,
                    "decode_scalar: expected codes to have shape (N, ", codec.num_codebooks,
                    "), but got ", codes.sizes());
  const auto z = codes_of(codes, codec).reshape({codes.size(0), codec.features()});
  return project(z, codec.out_weight, codec.out_bias)
      .to(at::kFloat)
      .masked_fill_(codes.lt(0).all(1, /*keepdim=*/true), 0);
}

Evaluation evaluate_scalar(const functional::VectorBlocks& vectors, const ScalarCodec& codec,
                           const std::function<void(int64_t rows)>& progress) {
  functional::check_blocks("evaluate_scalar", vectors);
  check_scalar_codec("evaluate_scalar", codec);
  const auto size = codec.codebook_size();
  std::vector<int64_t> sizes;
  if (size <= kMostCounted) sizes.assign(static_cast<size_t>(codec.num_codebooks), size);
  const auto quantize = [&](const at::Tensor& x) -> EvaluatedBlock {
    const auto codes = encode_scalar(x, codec);
    return {x, codes, decode_scalar(codes, codec)};
  };
  return evaluate_blocks("evaluate_scalar", vectors, sizes, quantize, progress);
}

}  // namespace torchvq::fit
