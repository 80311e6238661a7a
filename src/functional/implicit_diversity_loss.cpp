#include <torchvq/functional/implicit_diversity_loss.h>

#include <limits>
#include <string>

#include <ATen/ops/cat.h>
#include <torch/library.h>

#include <torchvq/distributed/all_reduce.h>

namespace torchvq::functional {
namespace {

at::Tensor implicit_diversity_loss_over_group(const at::Tensor& x, const at::Tensor& codes,
                                              double temperature,
                                              const std::optional<at::Tensor>& mask,
                                              std::string_view group_name, std::string_view label) {
  return implicit_diversity_loss(x, codes, temperature, mask,
                                 {std::string(group_name), std::string(label)});
}

}  // namespace

at::Tensor implicit_diversity_loss(const at::Tensor& x, const at::Tensor& codes, double temperature,
                                   const std::optional<at::Tensor>& mask,
                                   const distributed::SyncOptions& options) {
  const auto probability = x.sub(codes).norm(2, -1).mul(-temperature).softmax(-1);
  auto counted = x.isfinite().all(-1);
  if (mask) counted = counted.logical_and(*mask);
  auto total = probability.masked_fill(counted.logical_not(), 0).sum(0);
  auto tokens = counted.sum().to(total.scalar_type()).reshape({1});
  if (!options.group_name.empty()) {
    const auto summed = distributed::all_reduce_differentiable(at::cat({total, tokens}), options);
    total = summed.slice(0, 0, -1);
    tokens = summed.slice(0, -1);
  }
  const auto mean = total.div(tokens.clamp_min(1));
  const double tiny = mean.scalar_type() == at::kDouble ? std::numeric_limits<double>::min()
                                                        : std::numeric_limits<float>::min();
  return mean.mul(mean.clamp_min(tiny).log()).sum();
}

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "implicit_diversity_loss(Tensor x, Tensor codes, *, float temperature, Tensor? mask=None, "
      "str group_name=\"\", str label=\"quantizer\") -> Tensor",
      TORCH_FN(torchvq::functional::implicit_diversity_loss_over_group));
}
