// The tasks of a codebook's learning step, for code_exponents, code_statistics, ema_update_ and
// ema_update_tokens_. Callers must keep the tensors alive.
#pragma once

#include <array>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "kernels/cuda/code_exponents.h"
#include "kernels/cuda/code_statistics.h"
#include "kernels/cuda/ema_update.h"
#include "ops/cuda/elements.h"
#include "ops/cuda/kernel.h"

namespace torchvq::detail::TORCHVQ_CUDA_NAMESPACE {

namespace learning = kernels::TORCHVQ_CUDA_NAMESPACE;

/// `codebook` as returned by elements_of(); totals (H, 2) are zeros, exponents
/// (H, K) need no initialisation.
inline learning::CodeExponentsTask exponents_task(const at::Tensor& codebook,
                                                  const at::Tensor& totals,
                                                  const at::Tensor& exponents) {
  learning::CodeExponentsTask task;
  task.codebook = codebook.const_data_ptr();
  task.type = element_type(codebook);
  task.heads = codebook.size(0), task.size = codebook.size(1), task.dim = codebook.size(2);
  task.totals = totals.mutable_data_ptr<int64_t>();
  task.exponents = exponents.mutable_data_ptr<int32_t>();
  return task;
}

/// Tokens in the form that the kernels read.
struct LearnedTokens {
  at::Tensor x, indices, mask;  ///< mask may be undefined
  at::Tensor slots;             ///< scratch

  LearnedTokens(const at::Tensor& x_, const at::Tensor& indices_,
                const std::optional<at::Tensor>& mask_)
      : x(elements_of(x_)),
        indices(indices_.contiguous()),
        mask(mask_ ? mask_->expand(indices.sizes()).contiguous() : at::Tensor()),
        slots(at::empty(indices.sizes(), indices.options())) {}
};

/// Zeros: counts (H, K), sums (words, H, K, D), used (H, K).
struct StatisticsRoom {
  at::Tensor counts, sums, used;
};

inline learning::CodeStatisticsTask statistics_task(const LearnedTokens& tokens,
                                                    const at::Tensor& exponents,
                                                    const StatisticsRoom& room) {
  learning::CodeStatisticsTask task;
  task.x = tokens.x.const_data_ptr();
  task.type = element_type(tokens.x);
  task.indices = tokens.indices.const_data_ptr<int64_t>();
  task.mask = tokens.mask.defined() ? tokens.mask.const_data_ptr<bool>() : nullptr;
  task.exponents = exponents.const_data_ptr<int32_t>();
  task.heads = tokens.x.size(0), task.tokens = tokens.x.size(1), task.dim = tokens.x.size(2);
  task.size = exponents.size(1);
  task.slots = tokens.slots.mutable_data_ptr<int64_t>();
  task.used = room.used.mutable_data_ptr<int32_t>();
  task.counts = room.counts.mutable_data_ptr<int64_t>();
  task.sums = room.sums.mutable_data_ptr<int64_t>();
  return task;
}

/// Parameters of a learning step.
struct EmaRules {
  double decay, eps;
  bool unit, from_codebook, finish;
};

/// The state of a codebook and the scratch memory of its step. Strided state is updated in a
/// contiguous copy, which store() writes back.
class EmaCodebook {
 public:
  EmaCodebook(at::Tensor cluster_size, at::Tensor embed_avg, at::Tensor embed)
      : given_{std::move(cluster_size), std::move(embed_avg), std::move(embed)} {
    for (size_t i = 0; i < 3; ++i) own_[i] = given_[i].contiguous();
    const int64_t heads = own_[2].size(0), size = own_[2].size(1);
    const auto options = own_[2].options();
    doubles_ = at::empty({heads * size + heads}, options.dtype(at::kDouble));
    places_ = at::empty({2 * heads * size + heads}, options.dtype(at::kInt));
  }

  /// `weight` (H, K), float64, or undefined.
  template <typename T>
  learning::EmaStep<T> step(const StatisticsRoom& found, const at::Tensor& weight,
                            const EmaRules& rules) const {
    const int64_t heads = own_[2].size(0), size = own_[2].size(1);
    learning::EmaStep<T> step;
    step.counts = found.counts.const_data_ptr<int64_t>();
    step.sums = found.sums.const_data_ptr<int64_t>();
    step.exponents = found.used.const_data_ptr<int32_t>();
    if (weight.defined()) step.weight = weight.const_data_ptr<double>();
    step.two_words = found.sums.size(0) == 2;
    step.heads = heads, step.size = size, step.dim = own_[2].size(2);
    step.decay = rules.decay, step.step = 1.0 - rules.decay, step.eps = rules.eps;
    step.unit = rules.unit, step.from_codebook = rules.from_codebook, step.finish = rules.finish;
    step.before = doubles_.mutable_data_ptr<double>();
    step.totals = step.before + heads * size;
    step.use = places_.mutable_data_ptr<int32_t>();
    step.heaviest = step.use + heads * size;
    step.in_use = step.heaviest + heads * size;
    step.state = {own_[0].mutable_data_ptr<T>(), own_[1].mutable_data_ptr<T>(),
                  own_[2].mutable_data_ptr<T>()};
    return step;
  }

  void store() const {
    for (size_t i = 0; i < 3; ++i)
      if (!own_[i].is_same(given_[i])) given_[i].copy_(own_[i]);
  }

 private:
  std::array<at::Tensor, 3> given_, own_;  // cluster_size, embed_avg, embed
  at::Tensor doubles_, places_;
};

/// The weight of each code in a step, as (H, K) in float64; undefined if there is none.
inline at::Tensor ema_weight(const std::optional<at::Tensor>& weight, at::IntArrayRef shape) {
  return weight ? weight->to(at::kDouble).expand(shape).contiguous() : at::Tensor();
}

}  // namespace torchvq::detail::TORCHVQ_CUDA_NAMESPACE
