#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torchvq/functional/reconstruction_error.h>

#include <algorithm>
#include <vector>

#include "detail/precision.h"

namespace torchvq::functional {
namespace {

struct RowSums {
  double error = 0;
  double norm = 0;
};

template <typename T>
RowSums sum_row(const T* x, const T* decoded, int64_t dim) {
  RowSums sums;
  for (int64_t d = 0; d < dim; ++d) {
    const double value = x[d], difference = value - static_cast<double>(decoded[d]);
    sums.error += difference * difference;
    sums.norm += value * value;
  }
  return sums;
}

template <typename T>
std::vector<RowSums> sum_rows(const at::Tensor& x, const at::Tensor& decoded) {
  const auto *original = x.const_data_ptr<T>(), *copy = decoded.const_data_ptr<T>();
  const int64_t rows = x.size(0), dim = x.size(1);
  std::vector<RowSums> sums(static_cast<size_t>(rows));
  at::parallel_for(
      0, rows, std::max<int64_t>(1, 32768 / (dim + 1)), [&](int64_t begin, int64_t end) {
        for (int64_t n = begin; n < end; ++n) {
          sums[static_cast<size_t>(n)] = sum_row(original + n * dim, copy + n * dim, dim);
        }
      });
  return sums;
}

}  // namespace

void ReconstructionError::add(const at::Tensor& x, const at::Tensor& decoded) {
  TORCH_CHECK_VALUE(
      x.dim() == 2 && x.sizes() == decoded.sizes(),
      "ReconstructionError: expected x and decoded to have one shape (N, D), but got ", x.sizes(),
      " and ", decoded.sizes());
  const auto dtype = detail::value_dtype(x, decoded);
  const auto a = x.to(at::kCPU, dtype).contiguous(), b = decoded.to(at::kCPU, dtype).contiguous();
  const auto sums = dtype == at::kDouble ? sum_rows<double>(a, b) : sum_rows<float>(a, b);
  for (const auto& row : sums) {
    squared_error_.add(row.error);
    squared_norm_.add(row.norm);
  }
  vectors_ += a.size(0);
  elements_ += a.numel();
}

at::Tensor ReconstructionError::words() const {
  auto words = at::empty({2 + 2 * ExactSum::kWords}, at::kLong);
  auto* word = words.mutable_data_ptr<int64_t>();
  *word++ = vectors_;
  *word++ = elements_;
  for (const auto* sum : {&squared_error_, &squared_norm_}) {
    const auto of_sum = sum->words();
    word = std::copy(of_sum.begin(), of_sum.end(), word);
  }
  return words;
}

void ReconstructionError::set_words(const at::Tensor& words) {
  TORCH_CHECK_TYPE(words.scalar_type() == at::kLong,
                   "ReconstructionError: expected words to be int64, but got ",
                   words.scalar_type());
  TORCH_CHECK_VALUE(words.sizes() == at::IntArrayRef({2 + 2 * ExactSum::kWords}),
                    "ReconstructionError: expected words to have shape (", 2 + 2 * ExactSum::kWords,
                    ",), but got ", words.sizes());
  const auto own = words.cpu().contiguous();
  const auto* word = own.const_data_ptr<int64_t>();
  vectors_ = *word++;
  elements_ = *word++;
  for (auto* sum : {&squared_error_, &squared_norm_}) {
    ExactSum::Words of_sum;
    std::copy_n(word, of_sum.size(), of_sum.begin());
    sum->set_words(of_sum);
    word += of_sum.size();
  }
}

double ReconstructionError::mse() const {
  return squared_error_.value() / static_cast<double>(elements_);
}

double ReconstructionError::relative_error() const {
  return squared_error_.value() / squared_norm_.value();
}

}  // namespace torchvq::functional
