// Any device: plain ATen, the reference for the CPU kernels.
#include "ops/binary_codes.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>
#include <torchvq/random_purpose.h>

#include "detail/index_range.h"
#include "detail/ordered_sum.h"
#include "detail/precision.h"
#include "detail/random_tensor.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

/// log u - log(1 - u), one for each bit; tokens are numbered without padding.
at::Tensor logistic_noise(const at::Tensor& rng, const at::Tensor& logits,
                          const OptionalTensor& mask) {
  const int64_t bits = logits.size(-1);
  const auto shape = logits.sizes().slice(0, static_cast<size_t>(logits.dim() - 1));
  const auto options = logits.options().dtype(at::kLong);
  const auto tokens = mask ? mask->flatten().cumsum(0, at::kLong).sub_(1).view(shape)
                           : at::arange(logits.numel() / bits, options).view(shape);
  const auto positions = tokens.unsqueeze(-1) * bits + at::arange(bits, options);
  const auto key = detail::random_key(rng, static_cast<int64_t>(RandomPurpose::kCodeSampling));
  const auto u = detail::uniform_from_bits(detail::random_bits(key, positions), 53);
  return detail::log_of_uniform(u) - detail::log_of_uniform(1 - u);
}

at::Tensor binary_sample(const at::Tensor& logits, const OptionalTensor& rng, double temperature,
                         const OptionalTensor& mask) {
  const auto bits = detail::check_binary_sample(logits, rng, temperature, mask);
  const auto wide = logits.to(at::kDouble);
  const auto on = rng && temperature > 0 ? wide.gt(logistic_noise(*rng, logits, mask) * temperature)
                                         : wide.gt(0);
  const auto places = at::arange(bits, logits.options().dtype(at::kLong));
  auto indices = on.to(at::kLong).bitwise_left_shift(places).sum(-1);
  indices.masked_fill_(logits.isfinite().all(-1).logical_not(), 0);
  return mask ? indices.masked_fill_(mask->logical_not(), -1) : indices;
}

at::Tensor binary_one_hot(const at::Tensor& logits, const at::Tensor& indices, double temperature) {
  const auto bits = detail::check_binary_one_hot(logits, indices, temperature);
  auto sizes = indices.sizes().vec();
  sizes.push_back(int64_t{1} << bits);
  detail::check_index_range("binary_one_hot", "indices", indices, sizes.back());
  const auto present = indices.ge(0).to(logits.scalar_type()).unsqueeze(-1);
  auto output =
      at::zeros(sizes, logits.options()).scatter_(-1, indices.clamp_min(0).unsqueeze(-1), present);
  const auto absent = logits.isfinite().all(-1).logical_not().logical_and_(indices.ge(0));
  return output.masked_fill_(absent.unsqueeze(-1), std::numeric_limits<double>::quiet_NaN());
}

/// Folds the gradient bit by bit, from the highest.
at::Tensor binary_one_hot_backward(const at::Tensor& grad, const at::Tensor& logits,
                                   const at::Tensor& indices, double temperature) {
  const auto bits = detail::check_binary_one_hot_backward(grad, logits, indices, temperature);
  if (temperature == 0) return at::zeros_like(logits, at::MemoryFormat::Contiguous);
  const auto dtype = detail::sum_dtype(logits);
  const auto p = detail::divided(logits.to(dtype), temperature).sigmoid();
  std::vector<at::Tensor> below{at::ones_like(p.narrow(-1, 0, 1))};  // P of the bits below each
  for (int64_t h = 0; h + 1 < bits; ++h) {
    const auto one = p.narrow(-1, h, 1);
    below.push_back(at::cat({below.back() * (1 - one), below.back() * one}, -1));
  }
  auto rest = grad.to(dtype);
  std::vector<at::Tensor> slopes(static_cast<size_t>(bits));
  for (int64_t h = bits - 1; h >= 0; --h) {
    const int64_t half = int64_t{1} << h;
    const auto low = rest.narrow(-1, 0, half);
    const auto rise = rest.narrow(-1, half, half) - low;
    slopes[static_cast<size_t>(h)] = (below[static_cast<size_t>(h)] * rise).sum(-1);
    rest = low + p.narrow(-1, h, 1) * rise;
  }
  auto result = detail::divided(at::stack(slopes, -1) * p * (1 - p), temperature);
  return result.masked_fill_(indices.lt(0).unsqueeze(-1), 0).to(logits.scalar_type());
}

}  // namespace

at::Tensor detail::binary_kl_loss_any(const at::Tensor& logits, double threshold,
                                      const OptionalTensor& mask, bool reduce) {
  detail::check_binary_kl_loss(logits, threshold, mask);
  const auto size = logits.to(detail::sum_dtype(logits)).abs();
  const auto odds = size.neg().exp();  // of the less likely value
  const auto entropy = odds.log1p() + size * odds / (1 + odds);
  auto loss = (std::log(2.0) - entropy).sum(-1).sub_(threshold).clamp_min_(0);
  if (mask) loss.masked_fill_(mask->logical_not(), 0);
  const auto dtype = detail::value_dtype(logits, logits);
  if (!reduce) return loss.to(dtype);
  const auto total = loss.sum();
  if (mask) return (total / mask->sum().clamp_min(1)).to(dtype);
  return detail::divided(total, static_cast<double>(std::max<int64_t>(loss.numel(), 1))).to(dtype);
}

/// The derivative of log 2 - H(sigmoid(l)) is l p (1 - p).
at::Tensor detail::binary_kl_loss_backward_any(const at::Tensor& grad_, const at::Tensor& logits,
                                               double threshold, const OptionalTensor& mask,
                                               bool reduce) {
  check_binary_kl_loss_backward(grad_, logits, threshold, mask, reduce);
  const auto loss = binary_kl_loss_any(logits, threshold, mask, /*reduce=*/false);
  auto grad = grad_;
  if (reduce) {
    const auto tokens = static_cast<double>(std::max<int64_t>(loss.numel(), 1));
    grad = mask ? grad / mask->sum().clamp_min(1) : divided(grad, tokens);
  }
  const auto l = logits.to(sum_dtype(logits));
  const auto p = l.sigmoid();
  // masked_fill and not a product with 0, because padding may hold NaN.
  const auto slope = (l * p * (1 - p)).masked_fill(loss.eq(0).unsqueeze(-1), 0);
  return (slope * grad.to(l.scalar_type()).unsqueeze(-1)).to(logits.scalar_type());
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("binary_sample", binary_sample);
  m.impl("binary_one_hot", binary_one_hot);
  m.impl("binary_one_hot_backward", binary_one_hot_backward);
  m.impl("binary_kl_loss", detail::binary_kl_loss_any);
  m.impl("binary_kl_loss_backward", detail::binary_kl_loss_backward_any);
}

}  // namespace torchvq
