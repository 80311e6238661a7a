// Whether the kernels run on a device at all.
#pragma once

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

/// True for compute capability 8.0 (A100) and later; false where the driver cannot be asked, as on
/// a torch for AMD cards, which calls its devices cuda, too. Remembered.
bool supports_device(int device);

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
