// Buffers that casts to half precision do not change: counts, seeds, and numbers that must stay
// exact.
#pragma once

#include <functional>

#include <torch/nn/module.h>

#include <torchvq/export.h>
#include <torchvq/modules/checked_load.h>

namespace torchvq {

namespace detail {

/// Runs a cast of a module. Its own buffers keep their dtype if it is not a floating-point dtype
/// (libtorch would cast those, too) or if they would become float16 or bfloat16.
TORCHVQ_API void cast_keeping_buffers(torch::nn::Module& module, const std::function<void()>& cast);

}  // namespace detail

/// A module whose buffers keep their dtype in this way.
template <typename Derived>
class KeptBuffers : public CheckedLoad<Derived> {
 public:
  using torch::nn::Module::to;

  void to(torch::Device device, torch::Dtype dtype, bool non_blocking = false) override {
    detail::cast_keeping_buffers(*this,
                                 [&] { torch::nn::Module::to(device, dtype, non_blocking); });
  }
  void to(torch::Dtype dtype, bool non_blocking = false) override {
    detail::cast_keeping_buffers(*this, [&] { torch::nn::Module::to(dtype, non_blocking); });
  }
  void to(torch::Device device, bool non_blocking = false) override {
    torch::nn::Module::to(device, non_blocking);
  }
};

}  // namespace torchvq
