// Maps the name of an element type to the type, in files that include CUDA.
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/element_type.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

template <typename T>
struct Element {
  using Type = T;
};

/// Calls function(Element<T>()) for the type T that `type` names.
template <typename Function>
auto for_element_type(ElementType type, const Function& function) {
  switch (type) {
    case ElementType::kDouble:
      return function(Element<double>());
    case ElementType::kHalf:
      return function(Element<Half>());
    case ElementType::kBFloat16:
      return function(Element<BFloat16>());
    default:
      return function(Element<float>());
  }
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
