#include <torchvq/options/lfq.h>

#include <c10/util/Exception.h>

#include "options/expect.h"

namespace torchvq {
namespace {

constexpr detail::ExpectOption expect_lfq{"LFQOptions"};

}  // namespace

void LFQOptions::validate() const {
  TORCH_CHECK_VALUE(dim() || codebook_size(),
                    "LFQOptions: expected dim or codebook_size to be given, but got neither");
  expect_lfq(num_codebooks() >= 1, "num_codebooks", "at least 1", num_codebooks());
  expect_lfq(dim().value_or(1) >= 1, "dim", "at least 1", dim().value_or(1));
  const int64_t size = codebook_size().value_or(2);
  expect_lfq(size >= 2 && (size & (size - 1)) == 0, "codebook_size", "a power of 2 from 2 to 2^62",
             size);
  expect_lfq(codebook_size() || dim().value_or(1) <= 62, "dim",
             "at most 62 where codebook_size is not given", dim().value_or(1));
  expect_lfq(codebook_scale() > 0, "codebook_scale", "above 0", codebook_scale());
  expect_lfq(entropy_loss_weight() >= 0, "entropy_loss_weight", "0 or more", entropy_loss_weight());
  expect_lfq(commitment_loss_weight() >= 0, "commitment_loss_weight", "0 or more",
             commitment_loss_weight());
  expect_lfq(diversity_gamma() >= 0, "diversity_gamma", "0 or more", diversity_gamma());
  expect_lfq(frac_per_sample_entropy() > 0 && frac_per_sample_entropy() <= 1,
             "frac_per_sample_entropy", "in (0, 1]", frac_per_sample_entropy());
  expect_lfq(soft_clamp_input_value().value_or(codebook_scale()) >= codebook_scale(),
             "soft_clamp_input_value", "at least codebook_scale",
             soft_clamp_input_value().value_or(0));
  TORCH_CHECK_VALUE(keep_num_codebooks_dim().value_or(true) || num_codebooks() == 1,
                    "LFQOptions: expected keep_num_codebooks_dim to be true or open with several "
                    "codebooks, but got false");
}

}  // namespace torchvq
