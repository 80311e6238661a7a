#include <torchvq/options/latent_quantize.h>

#include <cmath>

#include "detail/scalar_levels.h"
#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_latent_quantize{"LatentQuantize"};

void check_latent_weight(const char* name, double weight) {
  expect_latent_quantize(std::isfinite(weight) && weight >= 0, name, "finite and 0 or more",
                         weight);
}

}  // namespace

void LatentQuantizeOptions::validate() const {
  expect_latent_quantize(dim() >= 1, "dim", "at least 1", dim());
  expect_latent_quantize(num_codebooks() >= 1, "num_codebooks", "at least 1", num_codebooks());
  detail::check_scalar_levels("LatentQuantize", levels(), 2);
  check_latent_weight("commitment_loss_weight", commitment_loss_weight());
  check_latent_weight("quantization_loss_weight", quantization_loss_weight());
  expect_latent_quantize(optimize_values() || !in_place_codebook_optimizer(), "optimize_values",
                         "True with in_place_codebook_optimizer", optimize_values());
}

template <>
const detail::OptionTable<LatentQuantizeOptions>& detail::option_table() {
  static const OptionTable<LatentQuantizeOptions> table{
      .owner = "LatentQuantize",
      .defaults = LatentQuantizeOptions(std::vector<int64_t>(), 1),
      .required = {"levels", "dim"},
      .rows = {
          TORCHVQ_OPTION(levels),
          TORCHVQ_OPTION(dim),
          TORCHVQ_OPTION(commitment_loss_weight),
          TORCHVQ_OPTION(quantization_loss_weight),
          TORCHVQ_OPTION(num_codebooks),
          TORCHVQ_OPTION(keep_num_codebooks_dim),
          TORCHVQ_OPTION(optimize_values),
          TORCHVQ_OPTION(in_place_codebook_optimizer),
          TORCHVQ_OPTION(channel_first),
          TORCHVQ_COMPAT_OPTION,
      }};
  return table;
}

}  // namespace torchvq
