#include "modules/random_state.h"

#include <torchvq/distributed/noise_rng.h>

#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "modules/ranks.h"

namespace torchvq::detail {

at::Tensor fresh_rng() {
  const auto seed = at::randint(int64_t{1} << 62, {}, at::kLong);
  return at::stack({seed, at::zeros({}, at::kLong)});
}

at::Tensor rng_of_rank(const at::Tensor& rng) {
  Ranks ranks;
  ranks.group_name = distributed::default_group();
  return distributed::noise_rng(rng.clone(), ranks);
}

}  // namespace torchvq::detail
