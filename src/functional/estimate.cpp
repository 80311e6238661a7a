#include <torchvq/functional/estimate.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>
#include <torch/library.h>

#include <torchvq/functional/vqp_compat.h>
#include <torchvq/ops/directional_reparam.h>
#include <torchvq/ops/random_numbers.h>
#include <torchvq/ops/rotation_trick.h>
#include <torchvq/ops/straight_through.h>
#include <torchvq/ops/sync_update_v.h>

#include "functional/estimate.h"

namespace torchvq::functional {
namespace {

constexpr std::array<std::string_view, 5> kNames = {"none", "straight_through", "rotation_trick",
                                                    "vqp_rotation_trick", "directional_reparam"};

at::Tensor by_name(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& rng,
                   const EstimateOptions& options) {
  const auto& name = options.estimator();
  if (name == "none") {
    return codes;
  }
  if (name == "straight_through") {
    return ops::straight_through(x, codes);
  }
  if (name == "rotation_trick") {
    return ops::rotation_trick(x, codes);
  }
  if (name == "vqp_rotation_trick") {
    return vqp_rotation_trick(x, codes);
  }
  const auto noise = ops::random_numbers(rng, RandomPurpose::kDirectionalReparam,
                                         Distribution::kNormal, x.sym_sizes(), x.scalar_type());
  return ops::directional_reparam(x, codes, noise, options.variance());
}

}  // namespace

bool is_plain_estimator(const std::string& name, double sync_update_v) {
  return sync_update_v == 0 && (name == "rotation_trick" || name == "straight_through");
}

bool is_estimator(const std::string& name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

at::Tensor estimate(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& rng,
                    const EstimateOptions& options) {
  TORCH_CHECK_VALUE(is_estimator(options.estimator()),
                    "estimate: expected estimator to be straight_through, rotation_trick, "
                    "vqp_rotation_trick, directional_reparam or none, but got ",
                    options.estimator());
  const auto output = by_name(x, codes, rng, options);
  return options.sync_update_v() != 0 ? ops::sync_update_v(output, options.sync_update_v())
                                      : output;
}

namespace {

at::Tensor estimate_op(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& rng,
                       std::string_view estimator, double variance, double sync_update_v) {
  return estimate(x, codes, rng,
                  EstimateOptions()
                      .estimator(std::string(estimator))
                      .variance(variance)
                      .sync_update_v(sync_update_v));
}

}  // namespace

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "estimate(Tensor x, Tensor codes, Tensor rng, *, str estimator='straight_through', "
      "float variance=0.005, float sync_update_v=0.0) -> Tensor",
      torchvq::functional::estimate_op);
}
