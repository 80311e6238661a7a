// The optimizer that a quantizer may have for its own codebook, and its part of the checkpoint.
#pragma once

#include <map>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <torchvq/export.h>

namespace torchvq {

/// What VectorQuantize and ResidualVQ have in common where an option names an optimizer of the
/// codebook (VectorQuantizeOptions::in_place_codebook_optimizer).
class TORCHVQ_API InPlaceOptimizer {
 public:
  virtual ~InPlaceOptimizer() = default;

  bool has_in_place_optimizer() const;
  /// Steps the optimizer, then clears its gradients; nothing happens without one.
  virtual void update_in_place_optimizer();
  /// What it has accumulated, "0.exp_avg"; state_dict() includes it.
  std::map<std::string, at::Tensor> in_place_optimizer_state() const;
  void load_in_place_optimizer_state(const std::map<std::string, at::Tensor>& state);
  /// Throws c10::ValueError for state of another optimizer.
  void check_in_place_optimizer_state(const std::map<std::string, at::Tensor>& state) const;

 protected:
  InPlaceOptimizer() = default;
  InPlaceOptimizer(const InPlaceOptimizer&) = default;
  InPlaceOptimizer& operator=(const InPlaceOptimizer&) = default;

  void save_in_place_optimizer(torch::serialize::OutputArchive& archive) const;
  /// Reads, and checks, what save_in_place_optimizer() wrote; to be loaded when all else is.
  std::map<std::string, at::Tensor> read_in_place_optimizer(
      torch::serialize::InputArchive& archive) const;

  std::shared_ptr<torch::optim::Optimizer> in_place_optimizer_;
};

}  // namespace torchvq
