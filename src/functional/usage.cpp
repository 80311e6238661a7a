#include <c10/util/Exception.h>
#include <torchvq/functional/usage.h>

#include <cmath>

namespace torchvq::functional {
namespace {

at::Tensor checked(const at::Tensor& counts) {
  TORCH_CHECK_VALUE(
      counts.dim() == 1 && counts.size(0) > 0,
      "codebook_usage: expected counts to have shape (K,) with K >= 1, but got shape ",
      counts.sizes());
  const auto values = counts.cpu().to(at::kDouble).contiguous();
  const auto* count = values.const_data_ptr<double>();
  for (int64_t k = 0; k < values.size(0); ++k) {
    TORCH_CHECK_VALUE(count[k] >= 0 && std::isfinite(count[k]),
                      "codebook_usage: expected counts to be finite and not negative, but got ",
                      count[k]);
  }
  return values;
}

}  // namespace

CodebookUsage codebook_usage(const at::Tensor& counts) {
  const auto values = checked(counts);
  const auto* count = values.const_data_ptr<double>();
  CodebookUsage result;
  result.codebook_size = values.size(0);
  double total = 0;
  for (int64_t k = 0; k < result.codebook_size; ++k) total += count[k];
  for (int64_t k = 0; k < result.codebook_size; ++k) {
    if (count[k] == 0) continue;
    ++result.used_codes;
    const double p = count[k] / total;
    result.entropy_bits -= p * std::log2(p);
  }
  result.entropy_bits = std::abs(result.entropy_bits);  // a single code gives -0
  result.usage = static_cast<double>(result.used_codes) / static_cast<double>(result.codebook_size);
  result.perplexity = total > 0 ? std::exp2(result.entropy_bits) : 0;
  result.bits_per_vector = std::log2(static_cast<double>(result.codebook_size));
  return result;
}

}  // namespace torchvq::functional
