// CPU, float32; float64 falls back to the any-device kernel.
#include "ops/sign_entropy.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "detail/precision.h"
#include "kernels/cpu/sign_entropy.h"
#include "kernels/cpu/transpose.h"

namespace torchvq {
namespace {

using detail::SignGroup;
constexpr int64_t kTokensAtOnce = kernels::kProductBlock;
constexpr int64_t kProductsPerTask = 1 << 18;
constexpr int64_t kEntropyCodesPerTask = 4096;

/// Numbers of the real tokens of a head.
std::vector<int64_t> live_rows(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                               int64_t head) {
  std::vector<int64_t> rows;
  const int64_t tokens = x.size(1);
  const bool* mask_data = nullptr;
  at::Tensor held;
  if (mask.has_value()) {
    held = (mask->dim() == 2 ? mask->select(0, head) : *mask).contiguous();
    mask_data = held.const_data_ptr<bool>();
  }
  rows.reserve(static_cast<size_t>(tokens));
  for (int64_t n = 0; n < tokens; ++n) {
    if (mask_data == nullptr || mask_data[n]) rows.push_back(n);
  }
  return rows;
}

/// Distributions of the bits of some tokens, and of the halves of each group.
class Chunk {
 public:
  Chunk(const kernels::SignEntropyKernel& kernel, int64_t dim, int64_t most)
      : kernel_(kernel), groups_(detail::sign_groups(dim)), dim_(dim) {
    for (const auto& group : groups_) {
      places_.push_back(stride_);
      stride_ += (int64_t{2} << group.high) + (int64_t{2} << group.low());
    }
    const auto values = static_cast<size_t>(most * dim);
    for (auto* buffer : {&x_, &on_, &off_, &entropy_, &slope_}) buffer->resize(values);
    token_entropy_.resize(static_cast<size_t>(most));
    pyramids_.reset(new float[static_cast<size_t>(most * stride_)]);
  }

  void read(const float* x, const int64_t* rows, int64_t count, float sharpness) {
    count_ = count;
    at::parallel_for(0, count, kProductsPerTask / stride_ / 8 + 1, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        std::copy_n(x + rows[n] * dim_, dim_, x_.data() + n * dim_);
      }
      const int64_t first = begin * dim_;
      kernel_.bits(x_.data() + first, sharpness, (end - begin) * dim_,
                   {on_.data() + first, off_.data() + first, entropy_.data() + first,
                    slope_.data() + first});
      for (int64_t n = begin; n < end; ++n) read_token(n);
    });
  }

  int64_t count() const { return count_; }
  int64_t stride() const { return stride_; }
  const float* on(int64_t n, int64_t bit) const { return on_.data() + n * dim_ + bit; }
  const float* off(int64_t n, int64_t bit) const { return off_.data() + n * dim_ + bit; }
  const float* slope(int64_t n) const { return slope_.data() + n * dim_; }
  double token_entropy(int64_t n) const { return token_entropy_[static_cast<size_t>(n)]; }
  /// Pyramids of halves A and B of group g.
  const float* high(int64_t n, size_t g) const { return pyramid(n, g); }
  const float* low(int64_t n, size_t g) const {
    return pyramid(n, g) + (int64_t{2} << groups_[g].high);
  }

 private:
  float* pyramid(int64_t n, size_t g) const { return pyramids_.get() + n * stride_ + places_[g]; }

  void read_token(int64_t n) {
    double sum = 0;
    for (int64_t bit = 0; bit < dim_; ++bit) {
      sum += static_cast<double>(entropy_[static_cast<size_t>(n * dim_ + bit)]);
    }
    token_entropy_[static_cast<size_t>(n)] = sum;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const auto& group = groups_[g];
      const int64_t middle = group.first + group.high;
      float* first = pyramid(n, g);
      kernel_.pyramid(on(n, group.first), off(n, group.first), group.high, first);
      kernel_.pyramid(on(n, middle), off(n, middle), group.low(),
                      first + (int64_t{2} << group.high));
    }
  }

  const kernels::SignEntropyKernel& kernel_;
  const std::vector<SignGroup> groups_;
  std::vector<int64_t> places_;
  const int64_t dim_;
  int64_t stride_ = 0, count_ = 0;
  std::vector<float> x_, on_, off_, entropy_, slope_;
  std::vector<double> token_entropy_;
  std::unique_ptr<float[]> pyramids_;
};

/// sums (2^high, 2^low) of a group += A^T B.
void add_products(const kernels::SignEntropyKernel& kernel, const Chunk& chunk, size_t g,
                  const SignGroup& group, float* sums) {
  const int64_t rows = int64_t{1} << group.high, columns = int64_t{1} << group.low();
  const int64_t grain = kProductsPerTask / (chunk.count() * columns) / 4 * 4 + 4;
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    kernel.product({chunk.high(0, g) + rows + begin, chunk.stride(), 1, chunk.low(0, g) + columns,
                    chunk.stride(), sums + begin * columns, columns, chunk.count(), end - begin,
                    columns});
  });
}

/// The real tokens of a head, in chunks.
class HeadTokens {
 public:
  /// @param x  (T, D) of the head.
  HeadTokens(const kernels::SignEntropyKernel& kernel, const float* x, std::vector<int64_t> rows,
             int64_t dim, float sharpness)
      : x_(x),
        rows_(std::move(rows)),
        sharpness_(sharpness),
        chunk_(kernel, dim, std::min(count(), kTokensAtOnce)) {}

  int64_t count() const { return static_cast<int64_t>(rows_.size()); }

  /// Calls body(chunk, rows) for each chunk.
  template <typename Body>
  void over_chunks(const Body& body) {
    for (int64_t begin = 0; begin < count(); begin += kTokensAtOnce) {
      const int64_t own = std::min(kTokensAtOnce, count() - begin);
      // The totals have read a single chunk before the gradients.
      if (chunk_.count() != own || own < count()) {
        chunk_.read(x_, rows_.data() + begin, own, sharpness_);
      }
      body(chunk_, rows_.data() + begin);
    }
  }

 private:
  const float* x_;
  const std::vector<int64_t> rows_;
  const float sharpness_;
  Chunk chunk_;
};

/// The logarithms of a group's mean distribution minus their mean, and its entropy.
struct Logarithms {
  at::Tensor values, transposed;  // (2^high, 2^low)
  double entropy = 0;

  Logarithms(const kernels::SignEntropyKernel& kernel, const float* sums, float scale,
             const SignGroup& group, bool wanted) {
    const int64_t codes = group.size(),
                  blocks = (codes + kEntropyCodesPerTask - 1) / kEntropyCodesPerTask;
    values = at::empty({int64_t{1} << group.high, int64_t{1} << group.low()}, at::kFloat);
    float* to = values.mutable_data_ptr<float>();
    std::vector<double> parts(static_cast<size_t>(blocks));
    at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kEntropyCodesPerTask,
                      last = std::min(codes, first + kEntropyCodesPerTask);
        kernel.logarithms(sums + first, scale, last - first, to + first);
        double part = 0;
        for (int64_t i = first; i < last; ++i) {
          part -= static_cast<double>(sums[i] * scale) * static_cast<double>(to[i]);
        }
        parts[static_cast<size_t>(block)] = part;
      }
    });
    for (const double part : parts) entropy += part;
    if (!wanted) return;
    const int64_t rows = values.size(0), columns = values.size(1);
    const auto mean = static_cast<float>(entropy);
    for (int64_t code = 0; code < codes; ++code) to[code] += mean;
    transposed = at::empty({columns, rows}, at::kFloat);
    kernels::transpose_kernel(kernels::cpu_level())
        .words(to, rows, columns, 0, columns, transposed.mutable_data_ptr<float>());
  }
};

/// Gradients of one head.
struct Gradients {
  float *per_sample, *batch;
  float weight;
};

/// The gradient of a group's entropy with respect to the bits of one of its halves,
/// for tokens begin ... end: `other` holds the distributions of the other half, `own`
/// the pyramids of this half.
struct Half {
  const float *own, *other, *logarithms;
  int64_t first, bits, other_bits;
};

void add_half(const kernels::SignEntropyKernel& kernel, const Chunk& chunk, const Half& half,
              const int64_t* rows, int64_t begin, int64_t end, int64_t dim,
              const Gradients& grads) {
  const int64_t size = int64_t{1} << half.bits, others = int64_t{1} << half.other_bits;
  std::vector<float> expected(static_cast<size_t>((end - begin) * size));
  kernel.product({half.other + begin * chunk.stride() + others, 1, chunk.stride(), half.logarithms,
                  size, expected.data(), size, others, end - begin, size});
  for (int64_t n = begin; n < end; ++n) {
    kernel.fold(chunk.on(n, half.first), chunk.off(n, half.first), half.own + n * chunk.stride(),
                half.bits, -grads.weight, expected.data() + (n - begin) * size,
                grads.batch + rows[n] * dim + half.first);
  }
}

void add_gradients(const kernels::SignEntropyKernel& kernel, const Chunk& chunk,
                   const std::vector<SignGroup>& groups, const std::vector<Logarithms>& logarithms,
                   const int64_t* rows, int64_t dim, const Gradients& grads) {
  for (size_t g = 0; g < groups.size(); ++g) {
    const auto& group = groups[g];
    const Half high = {
        chunk.high(0, g), chunk.low(0, g), logarithms[g].transposed.const_data_ptr<float>(),
        group.first,      group.high,      group.low()};
    const Half low = {
        chunk.low(0, g),          chunk.high(0, g), logarithms[g].values.const_data_ptr<float>(),
        group.first + group.high, group.low(),      group.high};
    at::parallel_for(0, chunk.count(), kProductsPerTask / group.size() / 4 * 4 + 4,
                     [&](int64_t begin, int64_t end) {
                       add_half(kernel, chunk, high, rows, begin, end, dim, grads);
                       add_half(kernel, chunk, low, rows, begin, end, dim, grads);
                     });
  }
  for (int64_t n = 0; n < chunk.count(); ++n) {
    for (int64_t bit = 0; bit < dim; ++bit) {
      grads.per_sample[rows[n] * dim + bit] = chunk.slope(n)[bit] * grads.weight;
    }
  }
}

void head_totals(const kernels::SignEntropyKernel& kernel, HeadTokens& tokens, int64_t dim,
                 float* totals) {
  const auto groups = detail::sign_groups(dim);
  double entropy = 0;
  tokens.over_chunks([&](const Chunk& chunk, const int64_t* /*rows*/) {
    double part = 0;  // per block, so that other devices can sum blocks in parallel
    for (int64_t n = 0; n < chunk.count(); ++n) part += chunk.token_entropy(n);
    entropy += part;
    for (size_t g = 0; g < groups.size(); ++g) {
      add_products(kernel, chunk, g, groups[g], totals + groups[g].offset);
    }
  });
  const int64_t codes = detail::sign_totals_size(dim) - 3;
  totals[codes] = static_cast<float>(entropy);
  totals[codes + 1] = static_cast<float>(tokens.count());
  totals[codes + 2] = 1;
}

/// A float32 input, by head.
class Heads {
 public:
  Heads(const at::Tensor& x, const std::optional<at::Tensor>& mask, double sharpness)
      : kernel(kernels::sign_entropy_kernel(kernels::cpu_level())),
        x_(x.to(at::kFloat).contiguous()),
        mask_(mask),
        sharpness_(static_cast<float>(sharpness)) {}

  int64_t count() const { return x_.size(0); }
  int64_t dim() const { return x_.size(2); }
  int64_t values() const { return x_.size(1) * dim(); }
  float sharpness() const { return sharpness_; }

  HeadTokens tokens(int64_t head) const {
    return {kernel, x_.const_data_ptr<float>() + head * values(), live_rows(x_, mask_, head), dim(),
            sharpness_};
  }

  at::Tensor zero_totals() const {
    return at::zeros({count(), detail::sign_totals_size(dim())}, x_.options());
  }

  const kernels::SignEntropyKernel kernel;

 private:
  const at::Tensor x_;
  const std::optional<at::Tensor>& mask_;
  const float sharpness_;
};

at::Tensor sign_entropy_totals(const at::Tensor& x, double sharpness,
                               const std::optional<at::Tensor>& mask) {
  detail::check_sign_entropy(x, sharpness, mask);
  if (x.scalar_type() == at::kDouble) {
    return detail::sign_entropy_totals_any(x, sharpness, mask);
  }
  const Heads heads(x, mask, sharpness);
  auto totals = heads.zero_totals();
  for (int64_t h = 0; h < heads.count(); ++h) {
    auto tokens = heads.tokens(h);
    head_totals(heads.kernel, tokens, heads.dim(),
                totals.mutable_data_ptr<float>() + h * totals.size(1));
  }
  return totals;
}

/// Adds the entropies of a head to `entropies` and computes its gradients.
void head_forward(const Heads& heads, HeadTokens& tokens, const float* totals, Gradients* grads,
                  double* entropies) {
  const auto groups = detail::sign_groups(heads.dim());
  const int64_t codes = detail::sign_totals_size(heads.dim()) - 3;
  const auto count = static_cast<double>(totals[codes + 1]);
  if (count == 0) return;
  entropies[0] += static_cast<double>(totals[codes]) / count;
  std::vector<Logarithms> logarithms;
  for (const auto& group : groups) {
    logarithms.emplace_back(heads.kernel, totals + group.offset, static_cast<float>(1 / count),
                            group, grads != nullptr);
    entropies[1] += logarithms.back().entropy;
  }
  if (grads == nullptr || tokens.count() == 0) return;
  grads->weight = static_cast<float>(static_cast<double>(totals[codes + 2]) *
                                     static_cast<double>(heads.sharpness()) /
                                     (count * static_cast<double>(heads.count())));
  tokens.over_chunks([&](const Chunk& chunk, const int64_t* rows) {
    add_gradients(heads.kernel, chunk, groups, logarithms, rows, heads.dim(), *grads);
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> sign_entropy_forward(
    const at::Tensor& x, double sharpness, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& totals_, bool wanted) {
  detail::check_sign_entropy(x, sharpness, mask, totals_);
  if (x.scalar_type() == at::kDouble) {
    return detail::sign_entropy_forward_any(x, sharpness, mask, totals_, wanted);
  }
  const Heads heads(x, mask, sharpness);
  const auto totals = totals_ ? totals_->contiguous() : heads.zero_totals();
  const auto shape = wanted ? x.sizes().vec() : std::vector<int64_t>{0};
  const auto options = x.options().dtype(at::kFloat);
  auto grad_per_sample = at::zeros(shape, options), grad_batch = at::zeros(shape, options);
  double entropies[2] = {0, 0};
  for (int64_t h = 0; h < heads.count(); ++h) {
    auto tokens = heads.tokens(h);
    if (!totals_) {
      head_totals(heads.kernel, tokens, heads.dim(),
                  totals.mutable_data_ptr<float>() + h * totals.size(1));
    }
    Gradients grads = {};
    if (wanted) {
      grads.per_sample = grad_per_sample.mutable_data_ptr<float>() + h * heads.values();
      grads.batch = grad_batch.mutable_data_ptr<float>() + h * heads.values();
    }
    head_forward(heads, tokens, totals.const_data_ptr<float>() + h * totals.size(1),
                 wanted ? &grads : nullptr, entropies);
  }
  const auto mean = [&](double sum) {
    const auto count = static_cast<double>(heads.count());
    return detail::rounded_scalar(count == 0 ? 0 : sum / count, grad_batch);
  };
  return {mean(entropies[0]), mean(entropies[1]), grad_per_sample, grad_batch};
}

std::tuple<at::Tensor, at::Tensor> sign_entropy(const at::Tensor& x, double sharpness,
                                                const std::optional<at::Tensor>& mask,
                                                const std::optional<at::Tensor>& totals) {
  const auto found = sign_entropy_forward(x, sharpness, mask, totals, false);
  return {std::get<0>(found), std::get<1>(found)};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("sign_entropy", sign_entropy);
  m.impl("sign_entropy_totals", sign_entropy_totals);
  m.impl("sign_entropy_forward", sign_entropy_forward);
}

}  // namespace torchvq
