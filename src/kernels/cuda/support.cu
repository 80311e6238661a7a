#include "kernels/cuda/support.h"

#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {

bool supports_device(int device) { return capability_of(device) >= 8; }

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
