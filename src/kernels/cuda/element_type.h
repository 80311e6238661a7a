// The types of a tensor's elements that kernels read, by a name that both sides of the border know.
#pragma once

namespace torchvq::kernels {

enum class ElementType { kFloat, kDouble, kHalf, kBFloat16 };

}  // namespace torchvq::kernels
