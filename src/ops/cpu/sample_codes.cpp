#include "ops/sample_codes.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/library.h>
#include <torchvq/random_purpose.h>

#include "detail/random_key.h"
#include "detail/token_code_scores.h"
#include "kernels/cpu/sample_codes.h"
#include "kernels/random.h"
#include "ops/any/score_blocks.h"

namespace torchvq {
namespace {

struct Draw {
  double temperature;
  uint64_t key;
  kernels::SampleCodesKernel kernel;
};

// Codes whose hurdles are computed together.
constexpr int64_t kBlock = 256;

/// The best codes so far, best first, the lower one on ties.
class Drawn {
 public:
  explicit Drawn(int64_t count) : chances(static_cast<size_t>(count)) {}

  /// Forgets the codes, and writes those of the next token to `to`.
  void begin(int64_t* to) {
    codes = to;
    found = 0;
  }

  /// Whether a code with this chance, higher than those before, is one of the best.
  bool takes(double chance) const { return found < chances.size() || chance > chances.back(); }

  /// Whether no code can be one of the best whose chance is below 1 / hurdle.
  bool rules_out(double hurdle) const {
    return found == chances.size() && chances.back() * hurdle > 1.0;
  }

  void insert(int64_t code, double chance) {
    if (found < chances.size()) ++found;
    size_t place = found - 1;
    for (; place > 0 && chance > chances[place - 1]; --place) {
      chances[place] = chances[place - 1];
      codes[place] = codes[place - 1];
    }
    chances[place] = chance;
    codes[place] = code;
  }

  int64_t count() const { return static_cast<int64_t>(chances.size()); }

 private:
  std::vector<double> chances;
  int64_t* codes = nullptr;
  size_t found = 0;
};

/// The chance of the code with random number `position`; see kFarLag.
double chance_of(double lag, uint64_t position, const Draw& draw) {
  const auto bits = kernels::random_bits(draw.key, position);
  const double waiting = -kernels::log_of_uniform(kernels::uniform_from_bits(bits, 53));
  return lag >= detail::kFarLag ? std::exp(lag) / waiting : lag - std::log(waiting);
}

/// The codes of one token; `position` numbers scores[0] among all draws.
void sample_token(const double* scores, int64_t size, uint64_t position, const Draw& draw,
                  int64_t* codes, Drawn& drawn) {
  const double best = draw.kernel.best(scores, size);
  if (!std::isfinite(best)) {
    std::iota(codes, codes + drawn.count(), 0);
    return;
  }
  drawn.begin(codes);
  double hurdles[kBlock];
  for (int64_t from = 0; from < size; from += kBlock) {
    const int64_t count = std::min(kBlock, size - from);
    const auto first = position + static_cast<uint64_t>(from);
    draw.kernel.hurdles(scores + from, count, best, draw.temperature, draw.key, first, hurdles);
    for (int64_t k = 0; k < count; ++k) {
      if (drawn.rules_out(hurdles[k])) continue;
      const double chance = chance_of((scores[from + k] - best) / draw.temperature,
                                      first + static_cast<uint64_t>(k), draw);
      if (drawn.takes(chance)) drawn.insert(from + k, chance);
    }
  }
}

/// own_code_scores() by the search's kernel, in one pass over the codes.
at::Tensor own_scores(const at::Tensor& x_, const at::Tensor& codebook, detail::Metric metric) {
  if (metric != detail::Metric::kEuclidean || x_.scalar_type() != at::kFloat ||
      codebook.scalar_type() != at::kFloat) {
    return detail::own_code_scores(x_, codebook, metric);
  }
  const auto x = x_.contiguous(), codes = codebook.contiguous();
  const int64_t rows = x.size(0), size = codes.size(1), dim = codes.size(2);
  auto scores = at::empty({rows, size}, x.options().dtype(at::kDouble));
  const auto* const token = x.const_data_ptr<float>();
  auto* const to = scores.mutable_data_ptr<double>();
  detail::visit_token_code_scores(
      token, codes.const_data_ptr<float>(), rows, size, dim, /*cosine=*/false,
      [&](int64_t row, const std::vector<double>& halves) {
        double square = 0;
        for (int64_t d = 0; d < dim; ++d) {
          const auto value = static_cast<double>(token[row * dim + d]);
          square += value * value;
        }
        for (int64_t k = 0; k < size; ++k) {
          const double distance = square + 2 * halves[static_cast<size_t>(k)];
          // NaN stays, rounding below 0 does not.
          to[row * size + k] = -std::sqrt(distance < 0 ? 0.0 : distance);
        }
      });
  return scores;
}

at::Tensor sample_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                        double temperature, c10::string_view metric_name, int64_t stream,
                        std::optional<int64_t> topk) {
  const auto metric = detail::check_sample_codes(x, codebook, rng, temperature, metric_name, topk);
  // The first of equal scores must win on every device, and only the search guarantees this.
  if (temperature < detail::kColdestDraw) return detail::nearest_codes(x, codebook, metric, topk);
  const Draw draw{temperature,
                  detail::read_key(rng, static_cast<int64_t>(RandomPurpose::kCodeSampling), stream),
                  kernels::sample_codes_kernel(kernels::cpu_level())};
  return detail::choose_by_score(
      x, codebook, metric, topk, own_scores, [&](const at::Tensor& logits, int64_t position) {
        const auto scores = logits.contiguous();
        const int64_t rows = scores.size(0), size = scores.size(1);
        const int64_t count = topk.value_or(1);
        auto indices = at::empty({rows, count}, scores.options().dtype(at::kLong));
        const auto* score = scores.const_data_ptr<double>();
        auto* index = indices.mutable_data_ptr<int64_t>();
        at::parallel_for(0, rows, 1024 / size + 1, [&](int64_t begin, int64_t end) {
          Drawn drawn(count);
          for (int64_t row = begin; row < end; ++row) {
            sample_token(score + row * size, size, static_cast<uint64_t>(position + row * size),
                         draw, index + row * count, drawn);
          }
        });
        return indices;
      });
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("sample_codes", sample_codes); }

}  // namespace torchvq
