// Any device: plain ATen, the reference for the CPU kernel.
#include "ops/lookup_codes.h"

#include <ATen/ops/gather.h>
#include <torch/library.h>

#include "detail/index_range.h"

namespace torchvq {
namespace {

at::Tensor lookup_codes(const at::Tensor& codebook, const at::Tensor& indices) {
  detail::check_lookup_codes(codebook, indices);
  detail::check_index_range("lookup_codes", "indices", indices, codebook.size(1));
  const auto absent = indices.eq(-1).unsqueeze(-1);
  // An index below -1 stays negative, so that gather reports it as out of bounds.
  const auto rows = indices.unsqueeze(-1).masked_fill(absent, 0).expand({-1, -1, codebook.size(2)});
  return at::gather(codebook, 1, rows).masked_fill_(absent, 0);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("lookup_codes", lookup_codes); }

}  // namespace torchvq
