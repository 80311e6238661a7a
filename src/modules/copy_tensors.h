// Copies of modules whose members share tensors with their options. Cloneable copies
// children one by one, so an optimizer, or a member that is a grandchild, would keep the
// tensors of the discarded child.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>

namespace torchvq::detail {

/// Gives `to` copies of all parameters and buffers of `from`, on `device` or their own device, and
/// its flags requires_grad and training. Throws c10::ValueError, before anything is copied, if the
/// two differ in their parameters, buffers or submodules.
void copy_tensors(const torch::nn::Module& from, torch::nn::Module& to,
                  const std::optional<c10::Device>& device);

/// Throws c10::ValueError if a module has not as many levels, or groups, as its copy.
inline void check_number_of(const char* parts, size_t own, size_t of_copy) {
  TORCH_CHECK_VALUE(own == of_copy, "clone: expected ", parts, " to be the ", of_copy,
                    " of construction, but got ", own);
}

/// Gives a copy the options of the original, as they are now.
///
/// @param built   the original's options at construction, from which the copy was built with a copy
///                of their module.
/// @param to      the options of the copy.
/// @param module  gets the module (AnyModule) among the options; the copy keeps its own.
template <typename Options, typename Module>
void copy_options(const Options& from, const Options& built, Options& to,
                  const std::optional<c10::Device>& device, const Module& module) {
  const torch::nn::AnyModule &now = module(from), &before = module(built);
  const bool same = !now.is_empty() && !before.is_empty() && now.ptr() == before.ptr();
  auto own = same ? module(to) : now.clone(device);
  to = from;
  module(to) = std::move(own);
}

}  // namespace torchvq::detail
