#include "ops/code_statistics.h"

#include <torch/library.h>

namespace torchvq {
namespace {

detail::StatisticsTensors code_statistics(const at::Tensor& x, const at::Tensor& indices,
                                          const at::Tensor& exponents,
                                          const std::optional<at::Tensor>& mask) {
  detail::check_code_statistics(x, indices, exponents, mask);
  const auto heads = x.sym_size(0), size = exponents.sym_size(1), dim = x.sym_size(2);
  const c10::SymInt words = detail::sum_words(x.scalar_type());
  return {indices.new_empty_symint({heads, size}),
          indices.new_empty_symint({words, heads, size, dim}),
          exponents.new_empty_symint({heads, size})};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("code_statistics", code_statistics); }

}  // namespace torchvq
