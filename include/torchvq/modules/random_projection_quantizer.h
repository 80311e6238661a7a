// RandomProjectionQuantizer: targets for masked prediction from a quantizer that is not trained.
#pragma once

#include <memory>
#include <optional>

#include <torch/nn/modules/common.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/modules/kept_buffers.h>
#include <torchvq/modules/vector_quantize.h>
#include <torchvq/options/random_projection_quantizer.h>

namespace torchvq {

namespace detail {
struct Layout;
}  // namespace detail

/// Finds the nearest code, by cosine similarity, of randomly projected tokens. Projections and
/// codes are drawn once and never change.
///
/// Formula  index[c] = argmax_k cos(y[c], codebook[c, k]); y = norm(x) rand_projs, for several
///          codebooks put through vq.project_in
/// Paper    Chiu et al. 2022, BEST-RQ, arXiv:2202.01855; several codebooks: Zhang et al. 2023, USM,
///          arXiv:2303.01037
/// Parity   vector-quantize-pytorch, class RandomProjectionQuantizer; the same state names and
///          numbers, also of the second random layer of several codebooks, vq.project_in
///
/// Example:
/// ```
/// torchvq::RandomProjectionQuantizer targets(
///     torchvq::RandomProjectionQuantizerOptions(512, 1024, 256).num_codebooks(16));
/// auto indices = targets(torch::randn({1, 1024, 512}));  // (1, 1024, 16)
/// ```
class TORCHVQ_API RandomProjectionQuantizerImpl
    : public KeptBuffers<RandomProjectionQuantizerImpl> {
 public:
  explicit RandomProjectionQuantizerImpl(RandomProjectionQuantizerOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// @param x     (B, *, dim), or as the layout options say; any floating dtype but float8.
  /// @return      indices (B, *), with several codebooks (B, *, C); int64, -1 where masked. With
  ///              call.indices(): their cross-entropy, scalar, float32 (float64 for float64 x).
  ///
  /// Gradient     of the cross-entropy to x; indices have none.
  /// Ties         the lowest index wins.
  /// Empty        no tokens, or all masked: no indices, cross-entropy 0.
  /// Non-finite   a token with NaN or infinity gets index 0.
  /// Distributed  nothing is communicated; no state changes, not even in training.
  /// Throws       c10::ValueError for wrong shapes, c10::TypeError for wrong dtypes,
  ///              c10::IndexError for a target out of range.
  torch::Tensor forward(const torch::Tensor& x,
                        const RandomProjectionQuantizerForwardOptions& call = {});

  RandomProjectionQuantizerOptions options;
  torch::Tensor rand_projs;    ///< (C, dim, codebook_dim), registered under this name
  VectorQuantize vq{nullptr};  ///< the codes; registered under this name

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(RandomProjectionQuantizerForwardOptions())})

 private:
  detail::Layout layout() const;

  RandomProjectionQuantizerOptions
      built_from_;  ///< the options at construction, from which clone() builds
};

TORCH_MODULE(RandomProjectionQuantizer);

}  // namespace torchvq
