// torch::load() for modules whose tensors have the sizes and dtypes of their options.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/serialize/archive.h>

#include <torchvq/export.h>

namespace torchvq {

namespace detail {

/// Throws c10::ValueError, before anything is loaded, if the archive lacks a tensor or a child of
/// the module, or a tensor has another shape or dtype than that of the module or of its children:
/// libtorch replaces tensors of any shape, and reads the bytes of another dtype as if they had
/// the module's dtype.
TORCHVQ_API void check_archive(const torch::nn::Module& module,
                               torch::serialize::InputArchive& archive);

}  // namespace detail

/// A module that loads an archive of its own sizes and dtypes, or nothing.
template <typename Derived>
class CheckedLoad : public torch::nn::Cloneable<Derived> {
 public:
  using torch::nn::Cloneable<Derived>::Cloneable;

  void load(torch::serialize::InputArchive& archive) override {
    detail::check_archive(*this, archive);
    torch::nn::Module::load(archive);
  }
};

}  // namespace torchvq
