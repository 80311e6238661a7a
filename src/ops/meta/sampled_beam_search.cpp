#include "ops/sampled_beam_search.h"

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor sampled_beam_search(const at::Tensor& x, at::TensorList codebooks, at::TensorList rngs,
                               int64_t beam, double temperature, c10::string_view metric,
                               const std::optional<at::Tensor>& mask,
                               const std::optional<at::Tensor>& depth,
                               at::ArrayRef<double> weights) {
  detail::check_sampled_beam_search(x, codebooks, rngs, beam, temperature, metric, mask, depth,
                                    weights);
  const c10::SymInt levels(static_cast<int64_t>(codebooks.size()));
  return x.new_empty_symint({x.sym_size(0), x.sym_size(1), levels}, x.options().dtype(at::kLong));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("sampled_beam_search", sampled_beam_search); }

}  // namespace torchvq
