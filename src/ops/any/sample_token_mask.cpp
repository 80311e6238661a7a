#include "ops/sample_token_mask.h"

#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <torch/library.h>

#include <torchvq/random_purpose.h>

#include "detail/random_tensor.h"

namespace torchvq {
namespace {

at::Tensor sample_token_mask(const at::Tensor& rng, c10::SymInt tokens, double fraction,
                             const std::optional<at::Tensor>& mask) {
  detail::check_sample_token_mask(rng, tokens, fraction, mask);
  const auto token_mask = mask.has_value()
                              ? mask->contiguous()
                              : at::ones({tokens.expect_int()}, rng.options().dtype(at::kBool));
  const auto key = detail::random_key(rng, static_cast<int64_t>(RandomPurpose::kTokenSubset));
  const auto keys = detail::random_bits(key, token_mask.cumsum(-1, at::kLong))
                        .masked_fill(token_mask.logical_not(), std::numeric_limits<int64_t>::max());
  const auto rank = keys.argsort(/*stable=*/true).argsort(/*stable=*/true);
  const auto count = token_mask.sum(-1, /*keepdim=*/true);
  // A device without float64 rounds numbers of tokens above 2^24.
  const auto wide = count.to(count.is_mps() ? at::kFloat : at::kDouble);
  const auto wanted = (wide * fraction).to(at::kLong).clamp_min(1);
  return (rank < wanted).logical_and(token_mask);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("sample_token_mask", sample_token_mask);
}

}  // namespace torchvq
