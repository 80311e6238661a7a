// The optimizer that a quantizer may run on its codebook, and its part of the checkpoint.
#pragma once

#include <map>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <torchvq/export.h>

namespace torchvq {

/// Base of VectorQuantize and ResidualVQ for the option
/// VectorQuantizeOptions::in_place_codebook_optimizer.
class TORCHVQ_API InPlaceOptimizer {
 public:
  virtual ~InPlaceOptimizer() = default;

  bool has_in_place_optimizer() const;
  /// Whether training steps it: not if all its parameters are frozen.
  bool learns_in_place() const;
  /// Its class and its options at construction, which a scheduler does not change, and whether it
  /// has loaded state; "none" without one. Ranks must agree in these. Of an optimizer that is not
  /// torch::optim's SGD, Adam, AdamW, RMSprop or Adagrad only the rate is told.
  std::string in_place_optimizer_text() const;
  /// Steps the optimizer, then clears its gradients; does nothing without an optimizer.
  virtual void update_in_place_optimizer();
  /// The state of the optimizer, such as "0.exp_avg"; state_dict() includes it.
  std::map<std::string, at::Tensor> in_place_optimizer_state() const;
  void load_in_place_optimizer_state(const std::map<std::string, at::Tensor>& state);
  /// Whether a checkpoint had state of the optimizer. Ranks do not exchange that state, so it must
  /// be loaded on all of them or on none.
  bool in_place_state_loaded() const { return in_place_state_loaded_; }
  /// Throws c10::ValueError for state of another optimizer.
  void check_in_place_optimizer_state(const std::map<std::string, at::Tensor>& state) const;
  /// The state of an archive, checked; empty if it holds none.
  std::map<std::string, at::Tensor> read_in_place_optimizer(
      torch::serialize::InputArchive& archive) const;

 protected:
  InPlaceOptimizer() = default;
  InPlaceOptimizer(const InPlaceOptimizer&) = default;
  InPlaceOptimizer& operator=(const InPlaceOptimizer&) = default;

  void save_in_place_optimizer(torch::serialize::OutputArchive& archive) const;
  /// Sets what the option's function returned; `owner` is the class that errors name.
  void set_in_place_optimizer(const char* owner, std::shared_ptr<torch::optim::Optimizer> made);
  /// Copies the optimizer of a module with the same options: its state, and its options as they are
  /// now, such as a rate that a scheduler has changed.
  void copy_in_place_optimizer(const InPlaceOptimizer& other);

  std::shared_ptr<torch::optim::Optimizer> in_place_optimizer_;

 private:
  bool in_place_state_loaded_ = false;
};

}  // namespace torchvq
