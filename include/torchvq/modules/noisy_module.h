// State of modules that draw noise: a seed and a step of the counter-based generator.
#pragma once

#include <optional>
#include <string>

#include <torch/nn/module.h>

#include <torchvq/export.h>

namespace torchvq {

/// Base of modules that draw noise per token. Checkpoints without "rng", such as those of
/// vector-quantize-pytorch, load as well (state_dict.h): the seed stays, and steps count from 0.
class TORCHVQ_API NoisyModule {
 public:
  virtual ~NoisyModule() = default;

  torch::Tensor rng;  ///< (2,), int64, registered as "rng": seed, drawn at construction, and step

 protected:
  NoisyModule() = default;
  NoisyModule(const NoisyModule&) = default;
  NoisyModule& operator=(const NoisyModule&) = default;

  void register_rng(torch::nn::Module& module);
  /// The generator state for this forward; counts a step unless there are no tokens.
  ///
  /// @param x           the tokens; only their number matters.
  /// @param group_name  ranks that hold different tokens draw different numbers; "": alone.
  torch::Tensor take_rng(const torch::Tensor& x, const std::optional<torch::Tensor>& mask,
                         const std::string& group_name);
};

}  // namespace torchvq
