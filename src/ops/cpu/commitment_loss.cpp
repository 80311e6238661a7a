#include "ops/commitment_loss.h"

#include <vector>

#include <ATen/Parallel.h>
#include <torch/library.h>

#include "detail/precision.h"
#include "kernels/cpu/commitment_loss.h"

namespace torchvq {
namespace {

/// Blocks depend on the feature size alone, so that the order of additions never depends on
/// threads.
template <typename T>
double total_difference(const at::Tensor& x, const at::Tensor& codes, const bool* mask) {
  const int64_t rows = x.size(0) * x.size(1), dim = x.size(2);
  const int64_t block = 8192 / (dim + 1) + 1, blocks = (rows + block - 1) / block;
  const auto* a = x.const_data_ptr<T>();
  const auto* b = codes.const_data_ptr<T>();
  std::vector<double> partial(static_cast<size_t>(blocks));
  at::parallel_for(0, blocks, 4, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      partial[static_cast<size_t>(i)] =
          kernels::squared_differences(a, b, mask, i * block, std::min(rows, (i + 1) * block), dim);
    }
  });
  double total = 0;
  for (const double value : partial) total += value;
  return total;
}

int64_t count_tokens(const bool* mask, int64_t rows) {
  if (mask == nullptr) return rows;
  int64_t count = 0;
  for (int64_t row = 0; row < rows; ++row) count += mask[row] ? 1 : 0;
  return count;
}

at::Tensor commitment_loss(const at::Tensor& x_, const at::Tensor& codes_,
                           const std::optional<at::Tensor>& mask_) {
  detail::check_commitment_loss(x_, codes_, mask_);
  const auto dtype = detail::value_dtype(x_, codes_);
  const auto x = x_.to(dtype).contiguous(), codes = codes_.to(dtype).contiguous();
  const auto mask = mask_.has_value() ? mask_->contiguous() : at::Tensor();
  const auto* mask_data = mask.defined() ? mask.const_data_ptr<bool>() : nullptr;
  const double total = dtype == at::kDouble ? total_difference<double>(x, codes, mask_data)
                                            : total_difference<float>(x, codes, mask_data);
  const auto count = count_tokens(mask_data, x.size(0) * x.size(1)) * x.size(2);
  const double mean = count == 0 ? 0.0 : total / static_cast<double>(count);
  return detail::rounded_scalar(mean, x.options());
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("commitment_loss", commitment_loss); }

}  // namespace torchvq
