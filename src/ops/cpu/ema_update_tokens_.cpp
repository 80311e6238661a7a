#include "ops/ema_update_tokens_.h"

#include <string>
#include <type_traits>
#include <vector>

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/ema_update_.h>

#include "kernels/cpu/fixed_point_sum.h"
#include "ops/cpu/ema_rows.h"
#include "ops/cpu/token_order.h"
#include "ops/ema_update_.h"

namespace torchvq {
namespace {

// With more tokens per code than this, the code with the most tokens, which one thread sums, could
// take longer than all others together.
constexpr int64_t kTokensPerCode = 2;

/// Sums of one code at a time, computed from its tokens.
template <typename T>
struct TokenSums {
  class Reader {
   public:
    explicit Reader(const TokenSums& sums)
        : sums_(sums), words_(sums.dim), rests_(std::is_same_v<T, double> ? sums.dim : 0) {}

    detail::SumRow row(int64_t slot) {
      const int64_t first = sums_.order.starts[slot];
      const int64_t count = sums_.order.starts[slot + 1] - first;
      const int32_t exponent = sums_.exponents[slot];
      const double scale = kernels::power_of_two(kernels::kUnitBits - exponent);
      const int64_t* const rows = sums_.order.rows.data() + first;
      std::fill(words_.begin(), words_.end(), 0);
      if constexpr (std::is_same_v<T, double>) {
        std::fill(rests_.begin(), rests_.end(), 0);
        kernels::add_rows_fixed_point(sums_.x, sums_.dim, rows, count, scale, words_.data(),
                                      rests_.data());
      } else {
        kernels::add_rows_fixed_point(sums_.x, sums_.dim, rows, count, scale, words_.data());
      }
      return {words_.data(), rests_.empty() ? nullptr : rests_.data(), exponent};
    }

   private:
    const TokenSums& sums_;
    std::vector<int64_t> words_, rests_;
  };

  const T* x;
  int64_t dim;
  const detail::TokenOrder& order;
  const int32_t* exponents;
};

/// The options after their checks.
struct Rules {
  double decay;
  double eps;
  const std::optional<at::Tensor>& weight;
  bool unit;
  bool from_codebook;
  bool finish;
};

/// One codebook and its tokens.
struct Codebook {
  at::Tensor cluster_size;
  at::Tensor embed_avg;
  at::Tensor embed;
  at::Tensor x;
  detail::TokenSlots tokens;
};

Codebook codebook_of(const detail::EmaUpdateTokensArguments& arguments, size_t i) {
  const auto& embed = arguments.embed[i];
  const auto indices = arguments.indices[i].contiguous();
  const auto given = arguments.mask_of(i);
  const auto mask = given ? given->expand(indices.sizes()).contiguous() : at::Tensor();
  Codebook codebook{arguments.cluster_size[i], arguments.embed_avg[i], embed, arguments.x[i],
                    detail::TokenSlots(indices.numel())};
  detail::fill_slots("ema_update_tokens_", indices,
                     mask.defined() ? mask.const_data_ptr<bool>() : nullptr, embed.size(1),
                     codebook.tokens.slots);
  return codebook;
}

/// Updates a codebook and writes the contiguous `counts`.
template <typename T>
void update(Codebook& codebook, const Rules& rules, at::Tensor& counts) {
  const at::Tensor x = codebook.x.to(c10::CppTypeToScalarType<T>::value).contiguous();
  const int64_t dim = x.size(2);
  const T* const data = x.const_data_ptr<T>();
  counts.zero_();
  const auto weights = detail::step_weights(counts, rules.weight, rules.decay);
  const auto own = ops::code_exponents(codebook.embed);
  auto used = at::empty_like(own);
  detail::fill_exponents(data, dim, codebook.tokens);
  detail::raise_exponents(codebook.tokens, own, used);
  const auto order = detail::sort_by_slot(codebook.tokens, counts);
  const TokenSums<T> sums{data, dim, order, used.const_data_ptr<int32_t>()};
  const detail::EmaUpdate rows{counts.const_data_ptr<int64_t>(),
                               weights.data(),
                               codebook.embed.size(1),
                               dim,
                               rules.eps,
                               rules.decay,
                               rules.unit,
                               rules.from_codebook,
                               rules.finish};
  if (codebook.embed.scalar_type() == at::kDouble) {
    detail::update_heads<double>(rows, sums, codebook.cluster_size, codebook.embed_avg,
                                 codebook.embed);
  } else {
    detail::update_heads<float>(rows, sums, codebook.cluster_size, codebook.embed_avg,
                                codebook.embed);
  }
}

at::Tensor update_by_statistics(const detail::EmaUpdateTokensArguments& arguments, size_t i,
                                const Rules& rules) {
  const auto [counts, sums, exponents] =
      ops::code_statistics(arguments.x[i], arguments.indices[i],
                           ops::code_exponents(arguments.embed[i]), arguments.mask_of(i));
  ops::ema_update_(arguments.cluster_size[i], arguments.embed_avg[i], arguments.embed[i], counts,
                   sums, exponents,
                   {rules.decay, rules.eps, rules.unit ? "cosine" : "euclidean", rules.weight,
                    rules.from_codebook, rules.finish});
  return counts;
}

void ema_update_tokens_(at::TensorList cluster_size, at::TensorList embed_avg, at::TensorList embed,
                        at::TensorList counts, at::TensorList x, at::TensorList indices,
                        at::TensorList mask, double decay, double eps, std::string_view metric,
                        const std::optional<at::Tensor>& weight, bool from_codebook, bool finish) {
  const detail::EmaUpdateTokensArguments arguments{
      cluster_size, embed_avg, embed, counts, x, indices, mask, decay, eps, metric, weight};
  const bool unit = detail::check_ema_update_tokens_(arguments);
  const Rules rules{decay, eps, weight, unit, from_codebook, finish};
  if (weight.has_value()) detail::check_finite_weight("ema_update_tokens_", *weight);
  std::vector<Codebook> codebooks;  // all indices are checked before any codebook changes
  for (size_t i = 0; i < embed.size(); ++i) codebooks.push_back(codebook_of(arguments, i));
  for (size_t i = 0; i < codebooks.size(); ++i) {
    // Tokens that are the codes, or their averages, are read before any of them is written.
    const bool are_state = x[i].is_alias_of(embed[i]) || x[i].is_alias_of(embed_avg[i]);
    if (are_state || x[i].size(1) > kTokensPerCode * embed[i].size(1)) {
      counts[i].copy_(update_by_statistics(arguments, i, rules));
      continue;
    }
    auto own = counts[i].contiguous();
    if (codebooks[i].x.scalar_type() == at::kDouble) {
      update<double>(codebooks[i], rules, own);
    } else {
      update<float>(codebooks[i], rules, own);
    }
    if (!own.is_same(counts[i])) counts[i].copy_(own);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("ema_update_tokens_", ema_update_tokens_); }

}  // namespace torchvq
