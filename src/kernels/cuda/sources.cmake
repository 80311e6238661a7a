# Kernels for NVIDIA GPUs, and the operators that call them, by name. The emulation of tests compiles the same lists
# (tests/cuda_shim).
set(TORCHVQ_CUDA_KERNELS
  kernels/cuda/code_exponents.cu
  kernels/cuda/code_statistics.cu
  kernels/cuda/ema_update.cu
  kernels/cuda/nearest_code.cu
  kernels/cuda/support.cu)
set(TORCHVQ_CUDA_OPERATORS
  ops/cuda/code_exponents.cpp
  ops/cuda/code_statistics.cpp
  ops/cuda/ema_update_.cpp
  ops/cuda/nearest_code.cpp)
