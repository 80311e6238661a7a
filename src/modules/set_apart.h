// Results that users may write to.
#pragma once

#include <algorithm>
#include <initializer_list>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Copies those of the tensors that share memory with one before them: absent terms of a loss may
/// be one zero, and `loss += reconstruction` would change them all.
inline void set_apart(std::initializer_list<at::Tensor*> tensors) {
  for (const auto* own = tensors.begin(); own != tensors.end(); ++own) {
    const auto is_shared = [&](const at::Tensor* before) { return (*own)->is_alias_of(*before); };
    if (std::any_of(tensors.begin(), own, is_shared)) **own = (*own)->clone();
  }
}

}  // namespace torchvq::detail
