// Names of the element types that kernels read, for code with and without CUDA headers.
#pragma once

namespace torchvq::kernels {

enum class ElementType { kFloat, kDouble, kHalf, kBFloat16 };

}  // namespace torchvq::kernels
