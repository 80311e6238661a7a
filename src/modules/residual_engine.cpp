#include "modules/residual_engine.h"

#include <ATen/ops/full_like.h>

#include <torchvq/functional/layout.h>

#include "detail/joined.h"
#include "detail/precision.h"
#include "modules/projection.h"

namespace torchvq::detail {

namespace F = functional;

at::Tensor enter_stack(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                       const Layout& layout, const torch::nn::Linear& project_in) {
  // Residual and sum are kept in float32 between levels.
  return widened(apply_linear(project_in, layout.pack(x, mask)));
}

at::Tensor restore_codes(const at::Tensor& codes, const at::Tensor& x,
                         const std::optional<at::Tensor>& mask, const Layout& layout) {
  const auto rows = mask ? F::fill_masked(codes, *mask) : codes;
  return layout.unpack_positions(rows, x);
}

at::Tensor stack_levels(std::vector<at::Tensor> levels, int64_t count, int64_t missing,
                        int64_t dim) {
  const auto dropped = at::full_like(levels[0], missing).detach();
  levels.resize(static_cast<size_t>(count), dropped);
  return stacked(levels, dim);
}

int64_t decoded_levels(const std::string& owner, const at::Tensor& indices, int64_t levels,
                       bool fewer) {
  const auto count = indices.dim() > 0 ? indices.size(-1) : 0;
  TORCH_CHECK_VALUE(count <= levels && count >= (fewer ? 1 : levels), owner,
                    ": expected indices to have ", levels,
                    " levels on the last axis, or fewer with quantize_dropout, but got shape ",
                    indices.sizes());
  return count;
}

}  // namespace torchvq::detail
