// Marks arithmetic shared by CPU and CUDA kernels: one source, so both run the same operations.
#pragma once

#if defined(__CUDACC__)
#define TORCHVQ_ON_DEVICE __host__ __device__
#else
#define TORCHVQ_ON_DEVICE
#endif
