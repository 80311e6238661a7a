// For arithmetic that kernels of the CPU and of CUDA share: one source, the same operations.
#pragma once

#if defined(__CUDACC__)
#define TORCHVQ_ON_DEVICE __host__ __device__
#else
#define TORCHVQ_ON_DEVICE
#endif
