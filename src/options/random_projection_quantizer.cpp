#include <torchvq/options/random_projection_quantizer.h>

#include <c10/util/Exception.h>

#include "options/expect.h"
#include "options/tables.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_random_projection{"RandomProjectionQuantizer"};

}  // namespace

void RandomProjectionQuantizerOptions::validate() const {
  expect_random_projection(dim() >= 1, "dim", "at least 1", dim());
  expect_random_projection(codebook_size() >= 1, "codebook_size", "at least 1", codebook_size());
  expect_random_projection(codebook_dim() >= 1, "codebook_dim", "at least 1", codebook_dim());
  expect_random_projection(num_codebooks() >= 1, "num_codebooks", "at least 1", num_codebooks());
  TORCH_CHECK_VALUE(!accept_image_fmap() || !accept_3d_fmap(),
                    "RandomProjectionQuantizer: expected at most one of accept_image_fmap and "
                    "accept_3d_fmap, but got both");
}

template <>
const detail::OptionTable<RandomProjectionQuantizerOptions>& detail::option_table() {
  static const OptionTable<RandomProjectionQuantizerOptions> table{
      .owner = "RandomProjectionQuantizer",
      .defaults = RandomProjectionQuantizerOptions(1, 1, 1),
      .required = {"dim", "codebook_size", "codebook_dim"},
      .rows = {
          TORCHVQ_OPTION(dim),
          TORCHVQ_OPTION(codebook_size),
          TORCHVQ_OPTION(codebook_dim),
          TORCHVQ_OPTION(num_codebooks),
          TORCHVQ_OPTION(norm),
          TORCHVQ_OPTION(channel_last),
          TORCHVQ_OPTION(accept_image_fmap),
          TORCHVQ_OPTION(accept_3d_fmap),
          TORCHVQ_COMPAT_OPTION,
      }};
  return table;
}

}  // namespace torchvq
