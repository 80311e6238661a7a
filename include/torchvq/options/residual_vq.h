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

/// Codes per level: one number for all levels, or one for each.
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
  /// Features of the hidden layers. Default: those of a code.
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
  /// Levels Q, at least 1. May be left out where codebook_size lists them.
  TORCH_ARG(std::optional<int64_t>, num_quantizers);
  /// Codes per level: a number, or one for each level. Default: 512.
  TORCH_ARG(CodebookSizes, codebook_size) = 512;
  /// Features of a code. Where heads * codebook_dim differs from dim, project_in and project_out
  /// are linear layers around the stack. Default: dim.
  TORCH_ARG(std::optional<int64_t>, codebook_dim);
  /// Codes per latent and level; see VectorQuantizeOptions. Default: 1.
  TORCH_ARG(int64_t, heads) = 1;
  /// Input is (B, dim, H, W). Default: false. Of vq(), accept_3d_fmap and channel_last hold, too.
  TORCH_ARG(bool, accept_image_fmap) = false;
  /// Masked outputs are zero; otherwise the input. Default: true.
  TORCH_ARG(bool, return_zeros_for_masked_padding) = true;

  // Levels ----------------------------------------------------------------------------------------

  /// Options of every level. dim, codebook_size, codebook_dim, heads, accept_image_fmap and
  /// return_zeros_for_masked_padding are those of the stack, whatever is set here.
  TORCH_ARG(VectorQuantizeOptions, vq) = VectorQuantizeOptions(1);
  /// All levels use one codebook (RQ-VAE, arXiv:2203.01941), which learns once per forward from the
  /// residuals of all. Default: false.
  TORCH_ARG(bool, shared_codebook) = false;
  /// DiVeQ over the whole stack (https://openreview.net/forum?id=KRVnpTbx7R): the output is the
  /// latent plus a simulated error in the direction of the codes' sum,
  /// vq().directional_reparam_variance() its noise; codes learn by gradient, without commitment
  /// loss. Default: false.
  TORCH_ARG(bool, diveq) = false;
  /// Fraction of a level's gradient that reaches the residual of the next level, in [0, 1]. Each
  /// commitment loss is weakened by one minus that per level before it. Default: 0.
  TORCH_ARG(double, quant_grad_frac) = 0.0;

  // Quantizer dropout -----------------------------------------------------------------------------

  /// In training, use a random number of levels only. Default: false.
  TORCH_ARG(bool, quantize_dropout) = false;
  /// The last level that is never dropped, counted from 0. Default: 0.
  TORCH_ARG(int64_t, quantize_dropout_cutoff_index) = 0;
  /// Keep a multiple of this many levels (or all), at least 1. Default: 1.
  TORCH_ARG(int64_t, quantize_dropout_multiple_of) = 1;

  // Implicit codebooks ----------------------------------------------------------------------------

  /// QINCo (arXiv:2401.14732): a network makes the codes of each level but the first, for each
  /// token, from what the levels before have decoded. Codes and networks learn by gradient.
  /// Default: false.
  TORCH_ARG(bool, implicit_neural_codebook) = false;
  /// Those networks.
  TORCH_ARG(ImplicitCodebookOptions, mlp_kwargs);

  // Beam search -----------------------------------------------------------------------------------

  /// Paths through the levels that the search keeps, at least 1; the path that leaves least in the
  /// end is taken. 1 takes the nearest code of each level. Larger is better and slower. Default: 1.
  TORCH_ARG(std::optional<int64_t>, beam_size);
  /// The same in evaluation. Default: beam_size.
  TORCH_ARG(std::optional<int64_t>, eval_beam_size);
  /// A weight for each level: a path's score is then the weighted sum of what remains after each of
  /// its levels. Default: what remains after the last of them.
  TORCH_ARG(std::optional<std::vector<double>>, beam_score_quantizer_weights);
};

/// Options of one call of ResidualVQImpl::forward and GroupedResidualVQImpl::forward.
struct TORCHVQ_API ResidualVQForwardOptions {
  /// (B, *), bool, true for real tokens. Padding takes no part in anything; its indices are -1.
  TORCH_ARG(std::optional<torch::Tensor>, mask);
  /// Codes to score, in the shape in which they are returned: loss is then the sum over levels of
  /// the cross-entropy of the distances towards them. Each level sees the residual of its own
  /// choices. -1 is left out.
  TORCH_ARG(std::optional<torch::Tensor>, indices);
  /// Fill ResidualVQOutput::all_codes. Default: false.
  TORCH_ARG(bool, return_all_codes) = false;
  /// Overrides the module's option.
  TORCH_ARG(std::optional<double>, sample_codebook_temp);
  /// Freezes the codebooks for this call, in addition to the module's option. Default: false.
  TORCH_ARG(bool, freeze_codebook) = false;
  /// Overrides the module's option, in training and evaluation.
  TORCH_ARG(std::optional<int64_t>, beam_size);
  /// Decides which levels are dropped, the same as in Python and in the reference. Default: the
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
  /// Options of every stack; its dim and accept_image_fmap are set here, whatever they say.
  TORCH_ARG(ResidualVQOptions, rvq) = ResidualVQOptions(1);
};

}  // namespace torchvq
