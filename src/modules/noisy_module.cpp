#include <torchvq/modules/noisy_module.h>

#include <torchvq/distributed/noise_rng.h>
#include <torchvq/ops/advance_rng_.h>

#include "modules/random_state.h"
#include "modules/ranks.h"

namespace torchvq {

void NoisyModule::register_rng(torch::nn::Module& module) {
  rng = module.register_buffer("rng", detail::fresh_rng());
}

torch::Tensor NoisyModule::take_rng(const torch::Tensor& x,
                                    const std::optional<torch::Tensor>& mask,
                                    const std::string& group_name) {
  const auto taken = rng.clone();
  if (x.numel() > 0) {
    ops::advance_rng_(rng, mask);
  }
  detail::Ranks ranks;
  ranks.group_name = group_name;
  return distributed::noise_rng(taken, ranks);
}

}  // namespace torchvq
