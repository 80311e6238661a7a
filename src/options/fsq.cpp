#include <torchvq/options/fsq.h>

#include <algorithm>

#include "detail/scalar_levels.h"
#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_fsq{"FSQ"};

}  // namespace

void FSQOptions::validate() const {
  const bool two = std::find(levels().begin(), levels().end(), 2) != levels().end();
  expect_fsq(!two || preserve_symmetry(), "levels", "3 or more without preserve_symmetry",
             levels());
  detail::check_scalar_levels("FSQ", levels(), preserve_symmetry() ? 2 : 3);
  expect_fsq(num_codebooks() >= 1, "num_codebooks", "at least 1", num_codebooks());
  expect_fsq(dim().value_or(1) >= 1, "dim", "at least 1", dim());
  expect_fsq(num_codebooks() == 1 || keep_num_codebooks_dim().value_or(true),
             "keep_num_codebooks_dim", "True or None with several codebooks",
             keep_num_codebooks_dim());
  expect_fsq(noise_dropout() >= 0 && noise_dropout() <= 1, "noise_dropout", "in [0, 1]",
             noise_dropout());
  expect_fsq(noise_dropout() == 0 || preserve_symmetry(), "noise_dropout",
             "0 without preserve_symmetry, whose levels are evenly spaced in [-1, 1]",
             noise_dropout());
}

template <>
const detail::OptionTable<FSQOptions>& detail::option_table() {
  static const OptionTable<FSQOptions> table{.owner = "FSQ",
                                             .defaults = FSQOptions(std::vector<int64_t>()),
                                             .required = {"levels"},
                                             .rows = {
                                                 TORCHVQ_OPTION(levels),
                                                 TORCHVQ_OPTION(dim),
                                                 TORCHVQ_OPTION(num_codebooks),
                                                 TORCHVQ_OPTION(keep_num_codebooks_dim),
                                                 TORCHVQ_OPTION(scale),
                                                 TORCHVQ_OPTION(allowed_dtypes),
                                                 TORCHVQ_OPTION(channel_first),
                                                 TORCHVQ_OPTION(projection_has_bias),
                                                 TORCHVQ_OPTION(return_indices),
                                                 TORCHVQ_OPTION(force_quantization_f32),
                                                 TORCHVQ_OPTION(preserve_symmetry),
                                                 TORCHVQ_OPTION(noise_dropout),
                                                 TORCHVQ_OPTION(bound_hard_clamp),
                                                 TORCHVQ_OPTION(orthogonal_rotation),
                                                 TORCHVQ_COMPAT_OPTION,
                                             }};
  return table;
}

}  // namespace torchvq
