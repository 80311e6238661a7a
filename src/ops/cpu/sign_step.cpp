// CPU, float32: losses are combined as plain numbers, and one pass sums all gradients. float64
// falls back to the any-device kernel.
#include "ops/sign_step.h"

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <torchvq/ops/sign_entropy.h>
#include <torchvq/ops/sign_quantize.h>

#include "ops/cpu/mean_squared_difference.h"

namespace torchvq {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

constexpr int64_t kSignGradientsPerTask = 16384;

at::Tensor number_of(float value, const at::Tensor& like) {
  auto number = at::empty({}, like.options());
  *number.mutable_data_ptr<float>() = value;
  return number;
}

float value_of(const at::Tensor& number) { return *number.const_data_ptr<float>(); }

detail::SignStepTensors sign_step(const at::Tensor& latents, const ops::SignStepOptions& options,
                                  const OptionalTensor& mask_, const OptionalTensor& entropy_mask,
                                  const OptionalTensor& totals, bool wanted) {
  if (latents.scalar_type() == at::kDouble) {
    return detail::sign_step_any(latents, options, mask_, entropy_mask, totals, wanted);
  }
  const auto x = latents.to(at::kFloat).contiguous();
  const auto& weights = options.weights;
  const auto [codes, indices] = ops::sign_quantize(x, options.scale);
  const auto [per_sample, batch, slope_per_sample, slope_batch] =
      ops::sign_entropy_forward(x, options.sharpness, entropy_mask, totals, wanted);
  float commitment = 0;
  if (weights.commitment != 0) {
    const auto mask = mask_ ? mask_->contiguous() : at::Tensor();
    commitment = static_cast<float>(detail::mean_squared_difference(
        x, codes, mask.defined() ? mask.const_data_ptr<bool>() : nullptr));
  }
  const float entropy =
      value_of(per_sample) - value_of(batch) * static_cast<float>(weights.diversity_gamma);
  const float loss = entropy * static_cast<float>(weights.entropy) +
                     commitment * static_cast<float>(weights.commitment);
  return {codes,
          indices,
          number_of(loss, codes),
          per_sample,
          batch,
          number_of(commitment, codes),
          slope_per_sample,
          slope_batch};
}

/// The factors of the parts of the gradient.
struct SignFactors {
  float commitment = 0, per_sample = 0, batch = 0;
  bool commits = false, entropies = false;

  SignFactors(const detail::SignStepGradients& grads, const ops::SignStepWeights& weights,
              int64_t values, bool masked) {
    const auto add = [](const at::Tensor& own, float& to, bool& counts) {
      if (!own.defined()) return;
      to = counts ? to + value_of(own) : value_of(own);
      counts = true;
    };
    if (grads.loss.defined()) {
      const float grad = value_of(grads.loss);
      per_sample = grad * static_cast<float>(weights.entropy);
      batch = per_sample * -static_cast<float>(weights.diversity_gamma);
      commitment = grad * static_cast<float>(weights.commitment);
      entropies = weights.entropy != 0;
      commits = weights.commitment != 0;
    }
    bool counts = entropies;
    add(grads.per_sample, per_sample, counts);
    add(grads.batch, batch, entropies);
    entropies = entropies || counts;
    if (weights.commitment != 0) add(grads.commitment, commitment, commits);
    commitment = masked ? commitment * 2 / static_cast<float>(std::max<int64_t>(values, 1))
                        : commitment / static_cast<float>(static_cast<double>(values) / 2);
  }
};

/// Rows of a step, contiguous float32; `straight` may be null.
struct SignRows {
  const float *straight, *latents, *codes, *slope_per_sample, *slope_batch;
  const bool* mask;

  void add_up(int64_t begin, int64_t end, int64_t dim, const SignFactors& factors,
              float* to) const {
    for (int64_t at = begin * dim; at < end * dim; ++at) {
      float sum = straight == nullptr ? 0.0F : straight[at];
      if (factors.commits) {
        const bool real = mask == nullptr || mask[at / dim];
        sum = sum + (real ? latents[at] - codes[at] : 0.0F) * factors.commitment;
      }
      if (factors.entropies) {
        sum = sum + (slope_per_sample[at] * factors.per_sample + slope_batch[at] * factors.batch);
      }
      to[at] = sum;
    }
  }
};

at::Tensor sign_step_backward(const detail::SignStepGradients& grads,
                              const detail::SignStepSaved& saved,
                              const ops::SignStepWeights& weights) {
  if (saved.latents.scalar_type() == at::kDouble) {
    return detail::sign_step_backward_any(grads, saved, weights);
  }
  const auto latents = saved.latents.to(at::kFloat).contiguous(), codes = saved.codes.contiguous();
  const auto slope_per_sample = saved.slope_per_sample.contiguous();
  const auto slope_batch = saved.slope_batch.contiguous();
  const auto straight =
      grads.codes.defined() ? grads.codes.to(at::kFloat).contiguous() : at::Tensor();
  const auto mask = saved.mask ? saved.mask->contiguous() : at::Tensor();
  const bool* real = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  auto result = at::empty(latents.sizes(), latents.options());
  const int64_t dim = latents.size(2), rows = latents.size(0) * latents.size(1);
  const SignFactors factors(grads, weights, detail::count_tokens(real, rows) * dim,
                            real != nullptr);
  const SignRows from{straight.defined() ? straight.const_data_ptr<float>() : nullptr,
                      latents.const_data_ptr<float>(),
                      codes.const_data_ptr<float>(),
                      slope_per_sample.const_data_ptr<float>(),
                      slope_batch.const_data_ptr<float>(),
                      real};
  auto* to = result.mutable_data_ptr<float>();
  at::parallel_for(0, rows, kSignGradientsPerTask / dim + 1,
                   [&](int64_t begin, int64_t end) { from.add_up(begin, end, dim, factors, to); });
  return result.to(saved.latents.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("sign_step", TORCH_FN(detail::sign_step_kernel<&sign_step>));
  m.impl("sign_step_backward", TORCH_FN(detail::sign_step_backward_kernel<&sign_step_backward>));
}

}  // namespace torchvq
