#include "ops/scalar_decode.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/scalar_levels.h"

namespace torchvq {
namespace {

constexpr int64_t kDecodedPerTask = 8192;

at::Tensor scalar_level_indices(const at::Tensor& indices_, at::IntArrayRef levels) {
  detail::check_scalar_level_indices(indices_, levels);
  const auto indices = indices_.contiguous();
  auto sizes = indices.sizes().vec();
  const auto dim = static_cast<int64_t>(levels.size());
  sizes.push_back(dim);
  auto digits = at::empty(sizes, indices.options());
  const int64_t most = detail::scalar_basis(levels).back() * levels.back();
  const auto* from = indices.const_data_ptr<int64_t>();
  auto* to = digits.mutable_data_ptr<int64_t>();
  std::atomic<int64_t> wrong{-1};
  at::parallel_for(0, indices.numel(), kDecodedPerTask / dim + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (from[row] < -1 || from[row] >= most) wrong = row;
      int64_t rest = from[row];
      for (int64_t j = 0; j < dim; ++j) {
        to[row * dim + j] = from[row] < 0 ? -1 : rest % levels[static_cast<size_t>(j)];
        rest /= levels[static_cast<size_t>(j)];
      }
    }
  });
  TORCH_CHECK_INDEX(wrong < 0, "scalar_level_indices: expected indices to be in [-1, ", most,
                    "), but got ", from[wrong < 0 ? 0 : wrong.load()]);
  return digits;
}

at::Tensor scalar_indices(const at::Tensor& level_indices_, at::IntArrayRef levels) {
  detail::check_scalar_indices(level_indices_, levels);
  const auto digits = level_indices_.contiguous();
  auto indices = at::empty(digits.sizes().slice(0, digits.dim() - 1), digits.options());
  const auto basis = detail::scalar_basis(levels);
  const auto dim = static_cast<int64_t>(levels.size());
  const auto* from = digits.const_data_ptr<int64_t>();
  auto* to = indices.mutable_data_ptr<int64_t>();
  std::atomic<int64_t> wrong{-1};
  at::parallel_for(0, indices.numel(), kDecodedPerTask / dim + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      bool absent = false;
      int64_t index = 0;
      for (int64_t j = 0; j < dim; ++j) {
        const int64_t digit = from[row * dim + j];
        if (digit >= levels[static_cast<size_t>(j)]) {
          wrong = row * dim + j;
          break;
        }
        absent |= digit < 0;
        index += digit * basis[static_cast<size_t>(j)];
      }
      to[row] = absent ? -1 : index;
    }
  });
  TORCH_CHECK_INDEX(wrong < 0, "scalar_indices: expected level_indices to be below ", levels,
                    ", but got ", from[wrong < 0 ? 0 : wrong.load()]);
  return indices;
}

/// Division of numbers below 2^31 by one in [2, 65536], as a product and a shift: exact, because
/// the factor exceeds 2^shift / divisor by less than 2^(shift - 31) / divisor.
struct Quotient {
  explicit Quotient(int64_t divisor) {
    while ((int64_t{1} << (shift - 31)) < divisor) ++shift;
    factor = ((uint64_t{1} << shift) + static_cast<uint64_t>(divisor) - 1) /
             static_cast<uint64_t>(divisor);
  }

  int64_t of(int64_t number) const {
    return static_cast<int64_t>((static_cast<uint64_t>(number) * factor) >> shift);
  }

  int shift = 31;
  uint64_t factor = 0;
};

constexpr int64_t kSmallIndices = int64_t{1} << 31;

template <typename T>
struct DecodedFeature {
  DecodedFeature(int64_t levels, bool symmetric)
      : count(levels),
        quotient(levels),
        table(detail::scalar_levels<T>(levels, symmetric ? detail::ScalarBound::kSymmetricClamp
                                                         : detail::ScalarBound::kClamp)),
        codes(table->codes.data()) {}

  int64_t count;
  Quotient quotient;
  std::shared_ptr<const detail::ScalarLevels<T>> table;  ///< keeps the codes alive
  const T* codes;
};

/// Decodes one index; Small: below 2^31.
template <bool Small, typename T>
void decode_features(const std::vector<DecodedFeature<T>>& features, int64_t index, T* to) {
  for (const auto& feature : features) {
    const int64_t rest = Small ? feature.quotient.of(index) : index / feature.count;
    *to++ = feature.codes[index - rest * feature.count];
    index = rest;
  }
}

template <typename T>
at::Tensor decode_rows(const at::Tensor& indices, at::IntArrayRef levels, bool symmetric) {
  std::vector<DecodedFeature<T>> features;
  features.reserve(levels.size());
  for (const int64_t count : levels) features.emplace_back(count, symmetric);
  auto sizes = indices.sizes().vec();
  const auto dim = static_cast<int64_t>(levels.size());
  sizes.push_back(dim);
  auto codes = at::empty(sizes, indices.options().dtype(c10::CppTypeToScalarType<T>::value));
  const int64_t most = detail::scalar_basis(levels).back() * levels.back();
  const auto decode = most <= kSmallIndices ? decode_features<true, T> : decode_features<false, T>;
  const auto* from = indices.const_data_ptr<int64_t>();
  auto* to = codes.template mutable_data_ptr<T>();
  std::atomic<int64_t> wrong{-1};
  at::parallel_for(0, indices.numel(), kDecodedPerTask / dim + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t index = from[row];
      if (index >= 0 && index < most) {
        decode(features, index, to + row * dim);
      } else {
        if (index != -1) wrong = row;
        std::fill_n(to + row * dim, dim, T(0));
      }
    }
  });
  TORCH_CHECK_INDEX(wrong < 0, "scalar_decode: expected indices to be in [-1, ", most,
                    "), but got ", from[wrong < 0 ? 0 : wrong.load()]);
  return codes;
}

at::Tensor scalar_decode(const at::Tensor& indices, at::IntArrayRef levels, bool symmetric,
                         std::optional<at::ScalarType> wanted) {
  const auto dtype = wanted.value_or(at::kFloat);
  detail::check_scalar_decode(indices, levels, dtype);
  const auto rows = indices.contiguous();
  return dtype == at::kDouble ? decode_rows<double>(rows, levels, symmetric)
                              : decode_rows<float>(rows, levels, symmetric);
}

/// The level of a feature that is nearest to a code.
struct CodedFeature {
  CodedFeature(int64_t levels, bool symmetric, int64_t basis_)
      : rule(detail::scalar_rule(levels, symmetric)),
        last(static_cast<double>(levels - 1)),
        basis(basis_) {}

  /// NaN has level 0.
  int64_t level(double code) const {
    const double number = (code * rule.divisor + rule.centre) / rule.factor;
    // Where float64 holds no fractions, an addition rounds, and halves to even, as at::round does.
    constexpr double kWhole = 0x1.8p52;
    const double inside = std::min(std::max(0.0, number), last);
    return static_cast<int64_t>((inside + kWhole) - kWhole);
  }

  detail::ScalarRule rule;
  double last;
  int64_t basis;
};

template <typename T>
void index_rows(const at::Tensor& codes, const std::vector<CodedFeature>& features, int64_t* to,
                int64_t rows) {
  const T* const from = codes.const_data_ptr<T>();
  const auto dim = std::ssize(features);
  at::parallel_for(0, rows, kDecodedPerTask / dim + 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const T* code = from + row * dim;
      bool absent = false;
      for (int64_t j = 0; j < dim; ++j) absent |= std::isnan(static_cast<double>(code[j]));
      int64_t index = 0;
      for (const auto& feature : features) {
        const auto value = static_cast<double>(*code++);
        index += absent ? 0 : feature.level(value) * feature.basis;
      }
      to[row] = index;
    }
  });
}

at::Tensor scalar_code_indices(const at::Tensor& codes_, at::IntArrayRef levels, bool symmetric) {
  detail::check_scalar_code_indices(codes_, levels);
  // Half precision is exact in float32.
  const bool wide = codes_.scalar_type() == at::kDouble;
  const auto codes = codes_.to(wide ? at::kDouble : at::kFloat).contiguous();
  const auto basis = detail::scalar_basis(levels);
  std::vector<CodedFeature> features;
  features.reserve(levels.size());
  for (size_t j = 0; j < levels.size(); ++j) features.emplace_back(levels[j], symmetric, basis[j]);
  auto indices =
      at::empty(codes.sizes().slice(0, codes.dim() - 1), codes.options().dtype(at::kLong));
  auto* to = indices.mutable_data_ptr<int64_t>();
  wide ? index_rows<double>(codes, features, to, indices.numel())
       : index_rows<float>(codes, features, to, indices.numel());
  return indices;
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) {
  m.impl("scalar_code_indices", scalar_code_indices);
  m.impl("scalar_decode", scalar_decode);
  m.impl("scalar_level_indices", scalar_level_indices);
  m.impl("scalar_indices", scalar_indices);
}

}  // namespace torchvq
