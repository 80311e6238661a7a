// Options of ResidualVQ and GroupedResidualVQ. The names, meanings and defaults are those of the
// Python classes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include <torchvq/export.h>
#include <torchvq/options/vector_quantize.h>

namespace torchvq {

/// Number of codes: one number for all levels, or one for each level.
struct CodebookSizes {
  CodebookSizes(int64_t size) : sizes{size}, each(false) {}  // NOLINT(google-explicit-constructor)
  CodebookSizes(int size) : CodebookSizes(int64_t{size}) {}  // NOLINT(google-explicit-constructor)
  CodebookSizes(std::vector<int64_t> list)                   // NOLINT(google-explicit-constructor)
      : sizes(std::move(list)), each(true) {}
  CodebookSizes(std::initializer_list<int64_t> list) : sizes(list), each(true) {}

  std::vector<int64_t> sizes;
  bool each;  ///< one size per level
};

/// The networks of an implicit codebook (QINCo).
struct ImplicitCodebookOptions {
  /// Features of the hidden layers. Default: the features of a code.
  TORCH_ARG(std::optional<int64_t>, dim_hidden);
  /// Residual blocks. Default: 4.
  TORCH_ARG(int64_t, depth) = 4;
};

/// Options of a ResidualVQ module.
///
/// Example:
/// ```
/// auto options = torchvq::ResidualVQOptions(256).num_quantizers(8).codebook_size(1024);
/// options.vq().decay(0.9).kmeans_init(true);
/// torchvq::ResidualVQ quantizer(options);
/// ```
struct TORCHVQ_API ResidualVQOptions {
  /// @param dim  features of the input, at least 1.
  explicit ResidualVQOptions(int64_t dim) : dim_(dim) {}

  /// Throws c10::ValueError for an option out of range, or options that exclude each other.
  /// @return  the codebook size of every level.
  std::vector<int64_t> validate() const;

  // Shape -----------------------------------------------------------------------------------------

  /// Features of the input, at least 1.
  TORCH_ARG(int64_t, dim);
  /// Levels Q, at least 1. May be left out if codebook_size is a list.
  TORCH_ARG(std::optional<int64_t>, num_quantizers);
  /// Codes per level: a number, or one for each level. Default: 512.
  TORCH_ARG(CodebookSizes, codebook_size) = 512;
  /// Features of a code. If heads * codebook_dim differs from dim, project_in and project_out are
  /// linear layers around the stack. Default: dim.
  TORCH_ARG(std::optional<int64_t>, codebook_dim);
  /// Codes per latent and level; see VectorQuantizeOptions. Default: 1.
  TORCH_ARG(int64_t, heads) = 1;
  /// Input is (B, dim, H, W). Default: false. accept_3d_fmap and channel_last of vq() apply, too.
  TORCH_ARG(bool, accept_image_fmap) = false;
  /// Masked outputs are zero; otherwise the input. Default: true.
  TORCH_ARG(bool, return_zeros_for_masked_padding) = true;

  // Levels ----------------------------------------------------------------------------------------

  /// Options of every level. The stack sets dim, codebook_size, codebook_dim, heads,
  /// accept_image_fmap and return_zeros_for_masked_padding; they are ignored here. So is
  /// layernorm_after_project_in, as in the reference: levels have no projection.
  TORCH_ARG(VectorQuantizeOptions, vq) = VectorQuantizeOptions(1);
  /// All levels use one codebook (RQ-VAE, arXiv:2203.01941), which learns once per forward from the
  /// residuals of all levels. Default: false.
  TORCH_ARG(bool, shared_codebook) = false;
  /// DiVeQ over the whole stack (https://openreview.net/forum?id=KRVnpTbx7R): in training the
  /// output is the latent, moved by its distance from the sum of the codes in a noisy direction
  /// towards it, with noise of variance vq().directional_reparam_variance(); codes learn by
  /// gradient, without commitment loss. Evaluation gives the sum of the codes.
  /// Default: false.
  TORCH_ARG(bool, diveq) = false;
  /// Fraction of a level's gradient that reaches the residual of the next level, in [0, 1]. The
  /// gradient of each commitment loss is scaled by one minus this for every level before it.
  /// Default: 0.
  TORCH_ARG(double, quant_grad_frac) = 0.0;

  // Quantizer dropout -----------------------------------------------------------------------------

  /// In training, use only a random number of the levels. Default: false.
  TORCH_ARG(bool, quantize_dropout) = false;
  /// The last level that is never dropped, counted from 0. Default: 0.
  TORCH_ARG(int64_t, quantize_dropout_cutoff_index) = 0;
  /// The number kept is a multiple of this, or all levels; at least 1. Default: 1.
  TORCH_ARG(int64_t, quantize_dropout_multiple_of) = 1;

  // Implicit codebooks ----------------------------------------------------------------------------

  /// QINCo (arXiv:2401.14732): for each level after the first, a network computes the codes of each
  /// token from what the levels before have decoded. Codes and networks learn by gradient. Default:
  /// false.
  TORCH_ARG(bool, implicit_neural_codebook) = false;
  /// Options of these networks.
  TORCH_ARG(ImplicitCodebookOptions, mlp_kwargs);

  // Beam search -----------------------------------------------------------------------------------

  /// Paths through the levels that the search keeps, at least 1; it returns the path with the
  /// smallest final residual. 1 takes the nearest code of each level. Larger is better and slower.
  /// In training with stochastic_sample_codes each path draws that many different codes. Default: 1.
  TORCH_ARG(std::optional<int64_t>, beam_size);
  /// beam_size in evaluation. Default: beam_size.
  TORCH_ARG(std::optional<int64_t>, eval_beam_size);
  /// A weight for each level: the score of a path is then the weighted sum of the residuals after
  /// each level. Default: the residual after the last level.
  TORCH_ARG(std::optional<std::vector<double>>, beam_score_quantizer_weights);
};

/// Options of one call of ResidualVQImpl::forward and GroupedResidualVQImpl::forward.
struct TORCHVQ_API ResidualVQForwardOptions {
  /// (B, *), bool, true for real tokens. Padding takes no part in losses and learning; its indices
  /// are -1.
  TORCH_ARG(std::optional<torch::Tensor>, mask);
  /// Target codes, in the shape of the returned indices: the loss is then the sum over levels of
  /// the cross-entropy of the distances with these targets. The residual is that of the nearest
  /// codes, not of the targets. -1 is left out.
  TORCH_ARG(std::optional<torch::Tensor>, indices);
  /// Fill ResidualVQOutput::all_codes. Default: false.
  TORCH_ARG(bool, return_all_codes) = false;
  /// Overrides the module's option.
  TORCH_ARG(std::optional<double>, sample_codebook_temp);
  /// Freezes the codebooks for this call, in addition to the module's option. Default: false.
  TORCH_ARG(bool, freeze_codebook) = false;
  /// Overrides the module's option, in training and evaluation.
  TORCH_ARG(std::optional<int64_t>, beam_size);
  /// Seed that decides which levels are dropped, as in Python and in the reference. Default: the
  /// module's own generator.
  TORCH_ARG(std::optional<int64_t>, rand_quantize_dropout_fixed_seed);
};

/// Options of a GroupedResidualVQ module.
struct TORCHVQ_API GroupedResidualVQOptions {
  /// @param dim  features of the input, a multiple of groups.
  explicit GroupedResidualVQOptions(int64_t dim) : dim_(dim) {}

  /// Throws c10::ValueError as ResidualVQOptions::validate() does.
  void validate() const;

  /// Features of the input, a multiple of groups.
  TORCH_ARG(int64_t, dim);
  /// Residual stacks G, at least 1; each has its share of the features. Default: 1.
  TORCH_ARG(int64_t, groups) = 1;
  /// Input is (B, dim, H, W). Default: false.
  TORCH_ARG(bool, accept_image_fmap) = false;
  /// Options of every stack; the groups set its dim and accept_image_fmap.
  TORCH_ARG(ResidualVQOptions, rvq) = ResidualVQOptions(1);
};

}  // namespace torchvq
