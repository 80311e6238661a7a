#include "ops/residual_commit.h"

#include <torch/library.h>

#include "ops/unit_vectors.h"

namespace torchvq {
namespace {

detail::ResidualCommitTensors residual_commit(const at::Tensor& x, at::TensorList codebooks,
                                              const at::Tensor& indices,
                                              const std::optional<at::Tensor>& mask,
                                              std::string_view estimator, double gain) {
  detail::check_residual_commit(x, codebooks, indices, mask, estimator, gain);
  const auto options = x.options().dtype(detail::compute_dtype(x));
  const c10::SymInt levels(static_cast<int64_t>(codebooks.size()));
  std::vector<c10::SymInt> shape{levels};
  shape.insert(shape.end(), x.sym_sizes().begin(), x.sym_sizes().end());
  return {x.new_empty_symint(x.sym_sizes(), options), x.new_empty_symint({levels}, options),
          x.new_empty_symint(shape, options)};
}

at::Tensor residual_commit_backward(const at::Tensor& grads, const at::Tensor& residuals,
                                    const std::optional<at::Tensor>& mask, double gain,
                                    const std::optional<at::Tensor>& other) {
  detail::check_residual_commit_backward(grads, residuals, mask, gain, other);
  return residuals.new_empty_symint(residuals.sym_sizes().slice(1));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("residual_commit", residual_commit);
  m.impl("residual_commit_backward", residual_commit_backward);
}

}  // namespace torchvq
