// Whether the kernels can run on a device.
#pragma once

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// True for compute capability 8.0 (A100) and later; false if the driver cannot be queried, for
/// example with torch for AMD cards, which also calls its devices cuda. Cached.
bool supports_device(int device);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
