#include <torchvq/modules/random_projection_quantizer.h>

#include <ostream>

#include <torchvq/functional/losses.h>
#include <torchvq/functional/random_projection.h>
#include <torchvq/ops/commitment_cross_entropy.h>
#include <torchvq/ops/nearest_code.h>

#include "detail/precision.h"
#include "modules/call_checks.h"
#include "modules/copy_tensors.h"
#include "modules/layout.h"
#include "modules/projection.h"
#include "modules/search.h"

namespace torchvq {

namespace F = functional;

RandomProjectionQuantizerImpl::RandomProjectionQuantizerImpl(
    RandomProjectionQuantizerOptions options_)
    : options(options_), built_from_(options) {
  reset();
}

void RandomProjectionQuantizerImpl::reset() {
  options.validate();
  const auto codebooks = options.num_codebooks();
  // vqp_compat also restores the reference's smaller projections, whose size matters next to its
  // nonzero biases.
  rand_projs = register_buffer(
      "rand_projs", F::random_projections(codebooks, options.dim(), options.codebook_dim(),
                                          options.vqp_compat()));
  vq =
      register_module("vq", VectorQuantize(VectorQuantizeOptions(options.codebook_dim() * codebooks)
                                               .codebook_size(options.codebook_size())
                                               .heads(codebooks)
                                               .separate_codebook_per_head(true)
                                               .use_cosine_sim(true)));
  if (options.vqp_compat()) return;
  for (auto& parameter : vq->parameters()) parameter.requires_grad_(false);
  // The search compares directions, and a large offset common to all vectors would make them alike.
  if (vq->project_in) vq->project_in->bias.zero_();
}

void RandomProjectionQuantizerImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::RandomProjectionQuantizer(dim=" << options.dim()
         << ", codebook_size=" << options.codebook_size()
         << ", codebook_dim=" << options.codebook_dim()
         << ", num_codebooks=" << options.num_codebooks() << ")";
}

std::shared_ptr<torch::nn::Module> RandomProjectionQuantizerImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<RandomProjectionQuantizerImpl>(built_from_);
  detail::copy_tensors(*this, *copy, device);
  copy->vq->copy_level(*vq, device);
  copy->options = options;
  return copy;
}

detail::Layout RandomProjectionQuantizerImpl::layout() const {
  const bool image = options.accept_image_fmap(), volume = options.accept_3d_fmap();
  return {.dim = options.dim(),
          .heads = options.num_codebooks(),
          .separate = true,
          .channel_first = image || volume || !options.channel_last(),
          .map_rank = volume  ? 5
                      : image ? 4
                              : 0,
          .owner = "RandomProjectionQuantizer"};
}

torch::Tensor RandomProjectionQuantizerImpl::forward(
    const torch::Tensor& x, const RandomProjectionQuantizerForwardOptions& call) {
  const auto places = layout();
  places.check_input(x);
  if (call.indices()) {
    detail::check_targets(*call.indices(), x, places, vq->codebook_state->embed.size(1));
  }
  const auto token_mask = places.token_mask(x, call.mask(), std::nullopt);
  const auto spread = F::random_projection(places.pack(x, token_mask), rand_projs, options.norm());
  const auto projected =
      places.split_heads(detail::widened(detail::apply_linear(vq->project_in, spread)));
  const auto mask = places.split_mask(token_mask);
  const auto codes = detail::stored_codes(*vq, projected.scalar_type());
  if (call.indices()) {
    const auto targets = places.split_indices(*call.indices());
    const auto loss = ops::commitment_cross_entropy(projected, codes, targets, "cosine", mask);
    return F::weighted_loss({loss}, {1.0}, is_training());
  }
  const auto nearest =
      ops::nearest_code(projected.detach(), codes, ops::NearestCodeOptions().metric("cosine"));
  auto indices = nearest.indices;
  if (mask) indices = indices.masked_fill(mask->logical_not(), -1);
  return places.restore_positions(indices, x);
}

}  // namespace torchvq
