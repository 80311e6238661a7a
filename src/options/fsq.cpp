#include <torchvq/options/fsq.h>

#include <c10/util/Exception.h>

#include "detail/scalar_levels.h"

namespace torchvq {

void FSQOptions::validate() const {
  constexpr auto owner = "FSQOptions";
  detail::check_scalar_levels(owner, levels(), preserve_symmetry() ? 2 : 3);
  TORCH_CHECK_VALUE(num_codebooks() >= 1, owner,
                    ": expected num_codebooks to be at least 1, but got ", num_codebooks());
  TORCH_CHECK_VALUE(dim().value_or(1) >= 1, owner, ": expected dim to be at least 1, but got ",
                    dim().value_or(1));
  TORCH_CHECK_VALUE(num_codebooks() == 1 || keep_num_codebooks_dim().value_or(true), owner,
                    ": expected keep_num_codebooks_dim to be true with several codebooks, but got "
                    "false");
  TORCH_CHECK_VALUE(noise_dropout() >= 0 && noise_dropout() <= 1, owner,
                    ": expected noise_dropout to be in [0, 1], but got ", noise_dropout());
  TORCH_CHECK_VALUE(noise_dropout() == 0 || preserve_symmetry(), owner,
                    ": expected noise_dropout to be 0 without preserve_symmetry, whose levels are "
                    "evenly spaced in [-1, 1], but got ",
                    noise_dropout());
}

}  // namespace torchvq
