#include <torchvq/functional/average_gradients.h>

#include <string>

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <torch/library.h>

#include <torchvq/distributed/all_reduce.h>

#include "detail/checks.h"
#include "detail/precision.h"

namespace torchvq::functional {
namespace {

at::Tensor number_of(const at::Tensor& tokens, const std::optional<at::Tensor>& mask) {
  const auto dtype = detail::value_dtype(tokens, tokens);
  if (mask) return mask->sum().to(dtype).reshape({1});
  const auto one = at::ones({1}, tokens.options().dtype(dtype));
  return one.mul(tokens.sym_size(0) * tokens.sym_size(1));
}

std::vector<at::Tensor> average_gradients_over_group(at::TensorList gradients,
                                                     const at::Tensor& tokens,
                                                     const std::optional<at::Tensor>& mask,
                                                     std::string_view group_name,
                                                     std::string_view label) {
  return average_gradients(gradients, tokens, mask, {std::string(group_name), std::string(label)});
}

}  // namespace

std::vector<at::Tensor> average_gradients(at::TensorList gradients, const at::Tensor& tokens,
                                          const std::optional<at::Tensor>& mask,
                                          const distributed::SyncOptions& options) {
  for (const auto& gradient : gradients) {
    detail::check_defined("average_gradients", "gradients", gradient);
  }
  std::vector<at::Tensor> averages;
  if (options.group_name.empty() || gradients.empty()) {
    for (const auto& gradient : gradients) averages.push_back(gradient.clone());
    return averages;
  }
  std::vector<at::Tensor> parts{number_of(tokens, mask)};
  for (const auto& gradient : gradients)
    parts.push_back(gradient.reshape({-1}).to(parts[0].scalar_type()).mul(parts[0]));
  const auto summed = distributed::all_reduce_statistics(at::cat(parts), options);
  const auto mean = summed.slice(0, 1).div(summed[0].clamp_min(1));
  c10::SymInt begin = 0;  // a compiler traces gradients of unknown sizes
  for (const auto& gradient : gradients) {
    const auto own =
        mean.narrow_symint(0, begin, gradient.sym_numel()).view_symint(gradient.sym_sizes());
    // Copies, because optimizers detach gradients in place, which views do not allow.
    averages.push_back(own.to(gradient.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
    begin += gradient.sym_numel();
  }
  return averages;
}

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "average_gradients(Tensor[] gradients, Tensor tokens, *, Tensor? mask=None, "
      "str group_name=\"\", str label=\"quantizer\") -> Tensor[]",
      TORCH_FN(torchvq::functional::average_gradients_over_group));
}
