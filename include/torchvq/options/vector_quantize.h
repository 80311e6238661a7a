// Options of VectorQuantize. The names, meanings and defaults are those of the Python class.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/nn/modules/container/any.h>
#include <torch/optim/optimizer.h>

#include <torchvq/export.h>
#include <torchvq/options/vqp_compat.h>

namespace torchvq {

/// Makes, from the codebook's parameters, the optimizer that updates them inside each training
/// forward.
using CodebookOptimizer =
    std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

/// The values of options whose default depends on other options.
struct ResolvedVectorQuantizeOptions {
  bool rotation_trick;
  bool ema_update;
  bool learnable_codebook;
};

/// Options of a VectorQuantize module.
///
/// Example:
/// ```
/// const auto options = torchvq::VectorQuantizeOptions(256).codebook_size(512).decay(0.8);
/// torchvq::VectorQuantize quantizer(options);
/// ```
struct TORCHVQ_API VectorQuantizeOptions {
  /// @param dim  features of the input, at least 1.
  explicit VectorQuantizeOptions(int64_t dim) : dim_(dim) {}

  /// Throws c10::ValueError for an option out of range, or options that exclude each other.
  /// @return  the options whose default depends on others.
  ResolvedVectorQuantizeOptions validate() const;

  // Shape -----------------------------------------------------------------------------------------

  /// Features of the input, at least 1.
  TORCH_ARG(int64_t, dim);
  /// Number of codes K, at least 1. Default: 512.
  TORCH_ARG(int64_t, codebook_size) = 512;
  /// Features of a code, per head. If heads * codebook_dim differs from dim, project_in and
  /// project_out are linear layers, otherwise identities. Default: dim.
  TORCH_ARG(std::optional<int64_t>, codebook_dim);
  /// Codes per latent; the features are split over them, and the first belong to head 0.
  /// Default: 1.
  TORCH_ARG(int64_t, heads) = 1;
  /// One codebook per head instead of one for all. Default: false.
  TORCH_ARG(bool, separate_codebook_per_head) = false;
  /// Layer norm after project_in, if there is a projection. Default: false.
  TORCH_ARG(bool, layernorm_after_project_in) = false;
  /// Features on the last axis; otherwise on axis 1. Default: true.
  TORCH_ARG(bool, channel_last) = true;
  /// Input is (B, dim, H, W). Default: false.
  TORCH_ARG(bool, accept_image_fmap) = false;
  /// Input is (B, dim, T, H, W). Default: false.
  TORCH_ARG(bool, accept_3d_fmap) = false;
  /// Masked outputs are zero; otherwise the input. Default: true.
  TORCH_ARG(bool, return_zeros_for_masked_padding) = true;

  // Search ----------------------------------------------------------------------------------------

  /// Compare by cosine similarity; latents and codes become unit vectors (arXiv:2110.04627). Not with
  /// learnable_codebook or affine_param. Default: false.
  TORCH_ARG(bool, use_cosine_sim) = false;
  /// Sample codes from softmax(logits / temperature) in training. Default: false.
  TORCH_ARG(bool, stochastic_sample_codes) = false;
  /// Temperature of the sampling; 0 or less takes the nearest code. Default: 1.
  TORCH_ARG(double, sample_codebook_temp) = 1.0;

  // Gradient of the output ------------------------------------------------------------------------

  /// Rotate and scale the gradient from code to latent (arXiv:2410.06424), with a bounded gain;
  /// otherwise it is copied. Default: true, but false with directional_reparam and with dim 1.
  TORCH_ARG(std::optional<bool>, rotation_trick);
  /// With route_gradients_to_input(false): gradient through the softmax over the codes
  /// (arXiv:1611.01144). Needs rotation_trick(false); not with learnable_codebook or
  /// directional_reparam. Default: false.
  TORCH_ARG(bool, straight_through) = false;
  /// DiVeQ: in training the output is the latent, moved by its distance from the code in a noisy
  /// direction towards it; codes learn by gradient. Needs threshold_ema_dead_code or
  /// dead_code_threshold_fraction above 0. Evaluation, and latents (after project_in) that require
  /// no gradient, give the code. Default: false.
  TORCH_ARG(bool, directional_reparam) = false;
  /// Variance of the noise on that direction, 0 or more. Default: 0.005.
  TORCH_ARG(double, directional_reparam_variance) = 0.005;
  /// nu of the synchronous update (arXiv:2305.08842), in [0, 1]. Above 0 it needs
  /// learnable_codebook. Default: 0.
  TORCH_ARG(double, sync_update_v) = 0.0;
  /// The output sends its gradient to the input. Default: true.
  TORCH_ARG(bool, route_gradients_to_input) = true;

  // Losses ----------------------------------------------------------------------------------------

  /// Weight of the commitment loss, 0 or more; beta in the paper. Default: 1.
  TORCH_ARG(double, commitment_weight) = 1.0;
  /// Commitment as cross-entropy between distances and chosen code instead of the mean squared
  /// error. Default: false.
  TORCH_ARG(bool, commitment_use_cross_entropy_loss) = false;
  /// Weight of the orthogonal regularisation of the codes (arXiv:2112.00384), 0 or more. Default:
  /// 0.
  TORCH_ARG(double, orthogonal_reg_weight) = 0.0;
  /// Regularise the codes of this batch only. Default: false.
  TORCH_ARG(bool, orthogonal_reg_active_codes_only) = false;
  /// Regularise a random subset of at most this many codes. Default: all.
  TORCH_ARG(std::optional<int64_t>, orthogonal_reg_max_codes);
  /// Weight of minus the entropy of the mean code distribution, 0 or more. Default: 0.
  TORCH_ARG(double, codebook_diversity_loss_weight) = 0.0;
  /// Multiplies the logits of that distribution, 0 or more. Default: 100.
  TORCH_ARG(double, codebook_diversity_temperature) = 100.0;

  // Learning of the codebook ----------------------------------------------------------------------

  /// Decay of the moving averages, in [0, 1]; larger is slower. gamma in the paper. Default: 0.8.
  TORCH_ARG(double, decay) = 0.8;
  /// Laplace smoothing of the cluster sizes, above 0. Default: 1e-5.
  TORCH_ARG(double, eps) = 1e-5;
  /// The codebook does not change in training, except for one k-means initialisation. Default:
  /// false.
  TORCH_ARG(bool, freeze_codebook) = false;
  /// Training updates the codes by moving averages. Default: true, but false with vq_bridge and
  /// directional_reparam.
  TORCH_ARG(std::optional<bool>, ema_update);
  /// Training updates only the averages; codebook_state->update_ema() sets the codes. Default: false.
  TORCH_ARG(bool, manual_ema_update) = false;
  /// The codes are parameters, pulled by the commitment loss. Needs ema_update(false).
  /// Default: false, but true with vq_bridge and directional_reparam.
  TORCH_ARG(std::optional<bool>, learnable_codebook);
  /// Optimizer of the codebook that takes a step towards the tokens inside each training forward,
  /// before the search; averages and dead codes follow it there, from the codes that were nearest
  /// before it. The function sets its options. The state of SGD, Adam, AdamW, RMSprop and Adagrad of
  /// torch::optim is part of the checkpoint (state_dict.h, torch::save) under the names that Python
  /// uses, such as `in_place_codebook_optimizer.0.exp_avg`. Libtorch cannot read or set the state
  /// of an optimizer of unknown type, so others start anew. Needs codes that are parameters, by
  /// learnable_codebook or orthogonal_reg_weight. Default: none.
  TORCH_ARG(CodebookOptimizer, in_place_codebook_optimizer);
  /// Only accumulate its gradients; update_in_place_optimizer() takes the step. Default: false.
  TORCH_ARG(bool, manual_in_place_optimizer_update) = false;
  /// Module from codes (H, K, D) to the codes in use, of the same shape (FVQ). Default: none.
  TORCH_ARG(torch::nn::AnyModule, vq_bridge);

  // Initialisation and dead codes -----------------------------------------------------------------

  /// Initialise the codes by k-means on the first training tokens (SoundStream, arXiv:2107.03312).
  /// Default: false.
  TORCH_ARG(bool, kmeans_init) = false;
  /// Lloyd iterations of the k-means initialisation, 0 or more. Default: 10.
  TORCH_ARG(int64_t, kmeans_iters) = 10;
  /// A code whose moving average of tokens per step is below this is replaced by a token of the
  /// batch, unless it was used in this step. A step replaces at most one code for every four
  /// tokens, drawn at random, or with `vqp_compat` all. Default: 0, never.
  TORCH_ARG(double, threshold_ema_dead_code) = 0.0;
  /// The same threshold as a fraction of the mean number of tokens per code, which does not depend
  /// on the batch size. Default: 0, never.
  TORCH_ARG(double, dead_code_threshold_fraction) = 0.0;
  /// Behave as vector-quantize-pytorch where this library differs on purpose and training depends
  /// on it, to compare with old curves; docs/migrating.md has the list. Default: what
  /// TORCHVQ_COMPAT says.
  TORCH_ARG(bool, vqp_compat) = vqp_compat_by_default();

  // Affine codes ----------------------------------------------------------------------------------

  /// Map the codes to the mean and variance of the data (arXiv:2305.08842). Default: false.
  TORCH_ARG(bool, affine_param) = false;
  /// Decay of the data's statistics, in [0, 1]. Default: 0.99.
  TORCH_ARG(double, affine_param_batch_decay) = 0.99;
  /// Decay of the codes' statistics, in [0, 1]. Default: 0.9.
  TORCH_ARG(double, affine_param_codebook_decay) = 0.9;

  // Several processes -----------------------------------------------------------------------------

  /// Whether ranks learn one codebook from the tokens of all ranks, with the bits that one process
  /// learns from the whole batch. None or true: in training, if the group has several ranks. false:
  /// no communication at all. TORCHVQ_SYNC=0 in the environment means false for every module.
  /// Evaluation never communicates. Default: none.
  TORCH_ARG(std::optional<bool>, sync_codebook);
  /// Whether k-means uses the tokens of all ranks that learn together; otherwise only those of rank
  /// 0. Default: true.
  TORCH_ARG(bool, sync_kmeans) = true;
  /// Whether ranks that learn together share the affine statistics. Default: false.
  TORCH_ARG(bool, sync_affine_param) = false;
  /// The ranks that learn together: the name of a group in c10d, resolved at each training step.
  /// Default: distributed::default_group().
  TORCH_ARG(std::optional<std::string>, process_group);
  /// How statistics of ranks are added up: "exact", or "float" for slow networks, with half the
  /// bytes, and bits that depend on the number of ranks. Default: "exact".
  TORCH_ARG(std::string, reduction) = "exact";
  /// Number of training steps per update of the codebook, at least 1: their statistics are
  /// accumulated exactly and reduced once, so that ranks send one message for all of them, and the
  /// last step updates the codebook as from one batch with all their tokens. Default: 1.
  TORCH_ARG(int64_t, sync_every) = 1;
  /// The message of a training step is sent in forward and awaited at the end of backward, or
  /// earlier if the codebook is read. Only for Python modules; C++ modules refuse it. Not with
  /// sync_every above 1. Default: false.
  TORCH_ARG(bool, overlap_sync) = false;
};

/// Options of one call of VectorQuantizeImpl::forward; unset fields follow the module's options.
struct TORCHVQ_API VectorQuantizeForwardOptions {
  /// Target codes, in the shape of the returned indices: the loss is then the cross-entropy of the
  /// distances with these targets; -1 is left out.
  TORCH_ARG(std::optional<torch::Tensor>, indices);
  /// (B, *), bool, true for real tokens.
  TORCH_ARG(std::optional<torch::Tensor>, mask);
  /// (B,), integer, lengths of sequences with one position axis, instead of mask; above N means N.
  TORCH_ARG(std::optional<torch::Tensor>, lens);
  /// Return the k nearest codes, or with sampling in training k different draws. The codes do not learn
  /// from this call; the first k-means, and in training the statistics of affine_param, take its tokens.
  /// Above K it means K. Only with one head.
  TORCH_ARG(std::optional<int64_t>, topk);
  /// Overrides the module's option.
  TORCH_ARG(std::optional<double>, sample_codebook_temp);
  /// Overrides the module's option.
  TORCH_ARG(std::optional<bool>, freeze_codebook);
  /// Maps codes (H, K, D) to codes of each token (H, B, N, K, D), which are searched instead; with
  /// heads that share a codebook (1, B * heads, N, K, D).
  TORCH_ARG(std::function<torch::Tensor(torch::Tensor)>, codebook_transform_fn);
  /// (K,) or (H, K), or a scalar tensor, of any dtype: multiplies 1 - decay of each code.
  TORCH_ARG(std::optional<torch::Tensor>, ema_update_weight);
  /// Keep this call's statistics for the next call without it, as if both were one batch. They are no
  /// part of a checkpoint: loading a state drops them, but for those of sync_every. Default: false.
  TORCH_ARG(bool, accum_ema_update) = false;
  /// Overrides the module's option.
  TORCH_ARG(std::optional<bool>, ema_update);
};

}  // namespace torchvq
