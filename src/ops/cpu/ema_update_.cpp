#include "ops/ema_update_.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "ops/cpu/ema_rows.h"

namespace torchvq {

namespace detail {

std::vector<double> step_weights(const at::Tensor& counts, const std::optional<at::Tensor>& weight,
                                 double decay) {
  std::vector<double> weights(static_cast<size_t>(counts.numel()), 1.0 - decay);
  if (weight.has_value()) {
    const auto wide = at::empty(counts.sizes(), counts.options().dtype(at::kDouble))
                          .copy_(*weight)
                          .mul_(1.0 - decay);
    std::copy_n(wide.const_data_ptr<double>(), weights.size(), weights.begin());
  }
  return weights;
}

}  // namespace detail

namespace {

/// Sums of all codes, as returned by code_statistics.
struct SumMatrix {
  class Reader {
   public:
    explicit Reader(const SumMatrix& sums) : sums_(sums) {}
    detail::SumRow row(int64_t slot) const {
      const int64_t at = slot * sums_.dim;
      return {sums_.words + at, sums_.rests ? sums_.rests + at : nullptr, sums_.exponents[slot]};
    }

   private:
    const SumMatrix& sums_;
  };

  const int64_t* words;
  const int64_t* rests;
  const int32_t* exponents;
  int64_t dim;
};

void ema_update_(at::Tensor& cluster_size, at::Tensor& embed_avg, at::Tensor& embed,
                 const at::Tensor& counts, const at::Tensor& sums, const at::Tensor& exponents,
                 double decay, double eps, std::string_view metric,
                 const std::optional<at::Tensor>& weight, bool from_codebook, bool finish) {
  const bool unit = detail::check_ema_update_(
      cluster_size, embed_avg, embed, {counts, sums, exponents, decay, eps, metric, weight});
  if (weight.has_value()) detail::check_finite_weight("ema_update_", *weight);
  const auto weights = detail::step_weights(counts, weight, decay);
  const auto c = counts.contiguous(), s = sums.contiguous(), e = exponents.contiguous();
  const auto* words = s.const_data_ptr<int64_t>();
  const SumMatrix matrix{words, s.size(0) == 2 ? words + embed.numel() : nullptr,
                         e.const_data_ptr<int32_t>(), embed.size(2)};
  const detail::EmaUpdate update{c.const_data_ptr<int64_t>(),
                                 weights.data(),
                                 embed.size(1),
                                 embed.size(2),
                                 eps,
                                 decay,
                                 unit,
                                 from_codebook,
                                 finish};
  if (embed.scalar_type() == at::kDouble) {
    detail::update_heads<double>(update, matrix, cluster_size, embed_avg, embed);
  } else {
    detail::update_heads<float>(update, matrix, cluster_size, embed_avg, embed);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("ema_update_", ema_update_); }

}  // namespace torchvq
