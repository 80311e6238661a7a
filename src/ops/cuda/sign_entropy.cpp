// CUDA in float32, with the bits of the CPU and without waiting for the device; float64 falls back
// to the any-device kernel.
#include "ops/sign_entropy.h"

#include <algorithm>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "detail/precision.h"
#include "kernels/cuda/sign_entropy.h"
#include "ops/cuda/kernel.h"

namespace torchvq {
namespace {

using namespace detail::TORCHVQ_CUDA_NAMESPACE;
namespace on_device = kernels::TORCHVQ_CUDA_NAMESPACE;

// Limit on the numbers allocated for the gradients of one round of tokens.
constexpr int64_t kCudaExpectedValues = int64_t{1} << 24;

int64_t cuda_ceil_divided(int64_t count, int64_t each) { return (count + each - 1) / each; }

/// The real tokens of one head, and buffers for what kernels keep of them.
class CudaEntropyHead {
 public:
  CudaEntropyHead(const at::Tensor& x, const std::optional<at::Tensor>& mask, int64_t head,
                  double sharpness)
      : options_(x.options()) {
    tokens.x = x.const_data_ptr<float>() + head * x.size(1) * x.size(2);
    tokens.tokens = x.size(1), tokens.bits = x.size(2);
    tokens.sharpness = static_cast<float>(sharpness);
    if (mask.has_value()) {
      mask_ = (mask->dim() == 2 ? mask->select(0, head) : *mask).contiguous();
      place_ = mask_.cumsum(0, at::kLong);
      tokens.mask = mask_.const_data_ptr<bool>();
      tokens.place = place_.const_data_ptr<int64_t>();
    }
    on_ = at::empty({x.size(1), x.size(2)}, options_);
    off_ = at::empty({x.size(1), x.size(2)}, options_);
    bits.on = on_.mutable_data_ptr<float>();
    bits.off = off_.mutable_data_ptr<float>();
  }

  void keep_entropies() {
    entropy_ = at::empty({tokens.tokens}, options_.dtype(at::kDouble));
    bits.entropy = entropy_.mutable_data_ptr<double>();
  }

  void keep_slopes() {
    slope_ = at::empty_like(on_);
    row_ = at::empty({tokens.tokens}, options_.dtype(at::kLong));
    bits.slope = slope_.mutable_data_ptr<float>();
    bits.row = row_.mutable_data_ptr<int64_t>();
  }

  on_device::EntropyTokens tokens;
  on_device::EntropyBits bits;

 private:
  at::TensorOptions options_;
  at::Tensor mask_, place_, on_, off_, entropy_, slope_, row_;
};

on_device::EntropyGroup cuda_entropy_group(const detail::SignGroup& group) {
  return {group.first, group.high, group.low()};
}

void cuda_head_totals(CudaEntropyHead& head, float* totals, const at::TensorOptions& options,
                      const OnDevice& device) {
  constexpr auto op = "sign_entropy_totals";
  const int64_t codes = detail::sign_totals_size(head.tokens.bits) - 3;
  head.keep_entropies();
  check_launch(op, on_device::entropy_bits(head.tokens, head.bits, device.queue()));
  for (const auto& group : detail::sign_groups(head.tokens.bits)) {
    const auto shape = cuda_entropy_group(group);
    const int64_t part_count = on_device::entropy_part_count(head.tokens.tokens, shape);
    const auto parts = at::empty({part_count * group.size()}, options);
    check_launch(op, on_device::entropy_products(head.tokens, head.bits, shape,
                                                 parts.mutable_data_ptr<float>(), part_count,
                                                 totals + group.offset, device.queue()));
  }
  const auto sums = at::empty({cuda_ceil_divided(head.tokens.tokens, on_device::kEntropyBlock)},
                              options.dtype(at::kDouble));
  check_launch(op, on_device::entropy_tail(head.tokens, head.bits, sums.mutable_data_ptr<double>(),
                                           totals + codes, device.queue()));
}

at::Tensor cuda_sign_entropy_totals(const at::Tensor& x_, double sharpness,
                                    const std::optional<at::Tensor>& mask) {
  detail::check_sign_entropy(x_, sharpness, mask);
  if (x_.scalar_type() == at::kDouble) {
    return detail::sign_entropy_totals_any(x_, sharpness, mask);
  }
  const OnDevice device(x_);
  const auto x = x_.to(at::kFloat).contiguous();
  auto totals = at::zeros({x.size(0), detail::sign_totals_size(x.size(2))}, x.options());
  for (int64_t h = 0; h < x.size(0); ++h) {
    CudaEntropyHead head(x, mask, h, sharpness);
    cuda_head_totals(head, totals.mutable_data_ptr<float>() + h * totals.size(1), x.options(),
                     device);
  }
  return totals;
}

/// Data shared by the groups of a head, and its results.
struct CudaEntropyForward {
  const float* totals = nullptr;
  int64_t heads = 0, codes = 0;
  double* entropies = nullptr;
  float *grad_per_sample = nullptr, *grad_batch = nullptr;  // null: not wanted

  const float* tail() const { return totals + codes; }
};

void cuda_group_gradients(const CudaEntropyHead& head, const detail::SignGroup& group,
                          const CudaEntropyForward& forward, on_device::EntropyHalf half,
                          const at::TensorOptions& options, const OnDevice& device) {
  half.group = cuda_entropy_group(group);
  half.tail = forward.tail();
  half.sharpness = head.tokens.sharpness;
  half.heads = forward.heads;
  const int64_t size = int64_t{1} << std::max(group.high, group.low());
  const int64_t tokens = head.tokens.tokens;
  const int64_t round =
      std::clamp<int64_t>(kCudaExpectedValues / size, 1, std::max<int64_t>(tokens, 1));
  const auto expected = at::empty({round * size}, options);
  for (int64_t begin = 0; begin < tokens; begin += round) {
    for (const bool is_high : {true, false}) {
      half.is_high = is_high;
      check_launch("sign_entropy_forward",
                   on_device::entropy_half(
                       head.tokens, head.bits, half, begin, std::min(round, tokens - begin),
                       expected.mutable_data_ptr<float>(), forward.grad_batch, device.queue()));
    }
  }
}

void cuda_head_forward(CudaEntropyHead& head, const CudaEntropyForward& forward,
                       const at::TensorOptions& options, const OnDevice& device) {
  constexpr auto op = "sign_entropy_forward";
  const bool wanted = forward.grad_batch != nullptr;
  if (wanted) {
    head.keep_slopes();
    check_launch(op, on_device::entropy_bits(head.tokens, head.bits, device.queue()));
    check_launch(op,
                 on_device::entropy_slopes(head.tokens, head.bits, forward.tail(), forward.heads,
                                           forward.grad_per_sample, device.queue()));
  }
  const auto wide = options.dtype(at::kDouble);
  for (const auto& group : detail::sign_groups(head.tokens.bits)) {
    const int64_t part_count = cuda_ceil_divided(group.size(), on_device::kEntropyCodes);
    const auto logarithms = at::empty({group.size()}, options);
    const auto parts = at::empty({part_count}, wide), entropy = at::empty({1}, wide);
    check_launch(op,
                 on_device::entropy_logarithms(forward.totals + group.offset, forward.tail(),
                                               group.size(), logarithms.mutable_data_ptr<float>(),
                                               parts.mutable_data_ptr<double>(), device.queue()));
    check_launch(
        op, on_device::entropy_of_group(parts.const_data_ptr<double>(), part_count, forward.tail(),
                                        group.first == 0, entropy.mutable_data_ptr<double>(),
                                        forward.entropies, device.queue()));
    if (!wanted) continue;
    on_device::EntropyHalf half;
    half.logarithms = logarithms.const_data_ptr<float>();
    half.group_entropy = entropy.const_data_ptr<double>();
    cuda_group_gradients(head, group, forward, half, options, device);
  }
}

using CudaEntropyResult = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

CudaEntropyResult cuda_sign_entropy_forward(const at::Tensor& x_, double sharpness,
                                            const std::optional<at::Tensor>& mask,
                                            const std::optional<at::Tensor>& totals_, bool wanted) {
  detail::check_sign_entropy(x_, sharpness, mask, totals_);
  if (x_.scalar_type() == at::kDouble) {
    return detail::sign_entropy_forward_any(x_, sharpness, mask, totals_, wanted);
  }
  const OnDevice device(x_);
  const auto x = x_.to(at::kFloat).contiguous();
  const auto totals =
      totals_.has_value() ? totals_->contiguous() : cuda_sign_entropy_totals(x, sharpness, mask);
  const auto shape = wanted ? x.sizes().vec() : std::vector<int64_t>{0};
  auto grad_per_sample = at::zeros(shape, x.options()), grad_batch = at::zeros(shape, x.options());
  auto per_sample = at::zeros({}, x.options()), batch = at::zeros({}, x.options());
  if (x.size(0) == 0) return {per_sample, batch, grad_per_sample, grad_batch};
  auto entropies = at::zeros({2}, x.options().dtype(at::kDouble));
  CudaEntropyForward forward;
  forward.heads = x.size(0);
  forward.codes = detail::sign_totals_size(x.size(2)) - 3;
  forward.entropies = entropies.mutable_data_ptr<double>();
  for (int64_t h = 0; h < x.size(0); ++h) {
    const int64_t values = x.size(1) * x.size(2);
    forward.totals = totals.const_data_ptr<float>() + h * totals.size(1);
    if (wanted) {
      forward.grad_per_sample = grad_per_sample.mutable_data_ptr<float>() + h * values;
      forward.grad_batch = grad_batch.mutable_data_ptr<float>() + h * values;
    }
    CudaEntropyHead head(x, mask, h, sharpness);
    cuda_head_forward(head, forward, x.options(), device);
  }
  check_launch("sign_entropy_forward",
               on_device::entropy_means(forward.entropies, forward.heads,
                                        per_sample.mutable_data_ptr<float>(),
                                        batch.mutable_data_ptr<float>(), device.queue()));
  return {per_sample, batch, grad_per_sample, grad_batch};
}

std::tuple<at::Tensor, at::Tensor> cuda_sign_entropy(const at::Tensor& x, double sharpness,
                                                     const std::optional<at::Tensor>& mask,
                                                     const std::optional<at::Tensor>& totals) {
  const auto found = cuda_sign_entropy_forward(x, sharpness, mask, totals, false);
  return {std::get<0>(found), std::get<1>(found)};
}

}  // namespace

TORCHVQ_CUDA_KERNEL(sign_entropy, cuda_sign_entropy)
TORCHVQ_CUDA_KERNEL(sign_entropy_totals, cuda_sign_entropy_totals)
TORCHVQ_CUDA_KERNEL(sign_entropy_forward, cuda_sign_entropy_forward)

}  // namespace torchvq
