// Buffers that casts to half precision do not change: counts, seeds, and numbers that must stay
// exact. What is decoded follows the cast.
#pragma once

#include <functional>
#include <optional>

#include <torch/nn/module.h>

#include <torchvq/export.h>
#include <torchvq/modules/checked_load.h>

namespace torchvq {

namespace detail {

/// Runs a cast of a module. Its own buffers keep their dtype if it is not a floating-point dtype
/// (libtorch would cast those, too) or if they would become float16 or bfloat16.
TORCHVQ_API void cast_keeping_buffers(torch::nn::Module& module, const std::function<void()>& cast);

}  // namespace detail

/// The half precision of a module, in which it decodes: what follows it was cast as well.
class TORCHVQ_API HalfPrecision {
 public:
  HalfPrecision();

  /// float16 or bfloat16 if the module was cast to it, or built with it as the default dtype;
  /// otherwise empty.
  std::optional<torch::Dtype> half_dtype() const { return half_dtype_; }
  /// Decoded codes in that dtype; as they are if there is none.
  torch::Tensor in_half_dtype(const torch::Tensor& codes) const;

 protected:
  /// To be called when the module was cast.
  void note_cast(torch::Dtype dtype);

 private:
  std::optional<torch::Dtype> half_dtype_;
};

/// A module whose buffers keep their dtype in this way.
template <typename Derived>
class KeptBuffers : public CheckedLoad<Derived>, public HalfPrecision {
 public:
  using torch::nn::Module::to;

  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    detail::cast_keeping_buffers(*this,
                                 [&] { torch::nn::Module::to(device, dtype, non_blocking); });
    note_cast(dtype);
  }
  void to(torch::Dtype dtype, bool non_blocking = false) override {
    detail::cast_keeping_buffers(*this, [&] { torch::nn::Module::to(dtype, non_blocking); });
    note_cast(dtype);
  }
  void to(torch::Device device, bool non_blocking = false) override {
    torch::nn::Module::to(device, non_blocking);
  }
};

}  // namespace torchvq
