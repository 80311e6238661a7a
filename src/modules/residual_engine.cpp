#include "modules/residual_engine.h"

#include <ATen/ops/full_like.h>

#include <torchvq/functional/layout.h>

#include "detail/joined.h"
#include "modules/projection.h"

namespace torchvq::detail {

namespace F = functional;

at::Tensor enter_stack(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                       const Layout& layout, const torch::nn::Linear& project_in) {
  auto tokens = layout.pack(x);
  // Padding may hold anything, including NaN; zeros keep it out of every gradient.
  if (mask) tokens = F::fill_masked(tokens, *mask);
  auto inputs = project_in ? apply_linear(project_in, tokens) : tokens;
  // Residual and sum are kept in float32 between levels.
  const bool half = inputs.scalar_type() == at::kHalf || inputs.scalar_type() == at::kBFloat16;
  return half ? inputs.to(at::kFloat) : inputs;
}

at::Tensor leave_stack(const at::Tensor& total, const at::Tensor& x,
                       const std::optional<at::Tensor>& mask, const Layout& layout,
                       const torch::nn::Linear& project_out,
                       const std::optional<at::Tensor>& padding) {
  auto output = project_out ? apply_linear(project_out, total) : total;
  output = output.to(x.scalar_type());
  if (mask) output = F::fill_padding(output, *mask, padding);
  return layout.unpack(output, x);
}

at::Tensor restore_codes(const at::Tensor& codes, const at::Tensor& x,
                         const std::optional<at::Tensor>& mask, const Layout& layout) {
  const auto rows = mask ? F::fill_masked(codes, *mask) : codes;
  return F::unpack_positions(rows, x.sym_sizes(), layout.channel_first);
}

at::Tensor stack_levels(std::vector<at::Tensor> levels, int64_t count, int64_t missing,
                        int64_t dim) {
  const auto dropped = at::full_like(levels[0], missing).detach();
  levels.resize(static_cast<size_t>(count), dropped);
  return stacked(levels, dim);
}

}  // namespace torchvq::detail
