#include "ops/residual_encode.h"

#include <torch/library.h>

#include "detail/residual_arguments.h"

namespace torchvq {
namespace {

detail::ResidualEncodeTensors residual_encode(const at::Tensor& x, at::TensorList codebooks,
                                              std::string_view metric,
                                              const std::optional<at::Tensor>& depth,
                                              const std::optional<at::Tensor>& mask,
                                              std::optional<at::TensorList> prepared) {
  detail::check_residual_encode(x, codebooks, metric, depth, mask, prepared);
  const c10::SymInt levels(static_cast<int64_t>(codebooks.size()));
  return {
      x.new_empty_symint(x.sym_sizes(), x.options().dtype(detail::residual_dtype(x, codebooks))),
      x.new_empty_symint({x.sym_size(0), x.sym_size(1), levels}, x.options().dtype(at::kLong))};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("residual_encode", residual_encode); }

}  // namespace torchvq
