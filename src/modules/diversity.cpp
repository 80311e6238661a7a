#include "modules/diversity.h"

#include <ATen/ops/cat.h>

#include <torchvq/distributed/all_reduce.h>
#include <torchvq/ops/codebook_diversity_loss.h>

namespace torchvq::detail {
namespace {

at::Tensor totals_of(const VectorQuantizeImpl& vq, const Chosen& chosen) {
  return ops::codebook_diversity_totals(chosen.inputs.detach(), chosen.codebook.detach(),
                                        vq.options.codebook_diversity_temperature(),
                                        vq.codebook_state->metric(), chosen.mask);
}

at::Tensor no_totals(const VectorQuantizeImpl& vq, const at::Tensor& like) {
  return like.new_zeros({vq.codebook_state->num_codebooks(), vq.options.codebook_size() + 2});
}

}  // namespace

std::vector<std::optional<at::Tensor>> shared_totals(
    const std::vector<const VectorQuantizeImpl*>& levels,
    const std::vector<std::reference_wrapper<const Chosen>>& chosen,
    const distributed::Ranks& ranks) {
  std::vector<std::optional<at::Tensor>> totals(chosen.size());
  const auto& options = levels[0]->options;
  if (ranks.alone() || options.codebook_diversity_loss_weight() == 0 || options.vqp_compat()) {
    return totals;
  }
  std::vector<at::Tensor> parts, flat;
  std::vector<int64_t> sizes;
  for (size_t index = 0; index < levels.size(); ++index) {
    parts.push_back(index < chosen.size() ? totals_of(*levels[index], chosen[index])
                                          : no_totals(*levels[index], parts[0]));
    flat.push_back(parts.back().flatten());
    sizes.push_back(parts.back().numel());
  }
  const auto summed =
      distributed::all_reduce_statistics(at::cat(flat), ranks).split_with_sizes(sizes);
  for (size_t index = 0; index < chosen.size(); ++index) {
    totals[index] = summed[index].view(parts[index].sizes());
  }
  return totals;
}

}  // namespace torchvq::detail
