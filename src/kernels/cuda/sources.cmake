# Kernels for NVIDIA GPUs, and the operators that call them, by name. The emulation of tests compiles the same lists
# (tests/cuda_shim).
set(TORCHVQ_CUDA_KERNELS
  kernels/cuda/code_exponents.cu
  kernels/cuda/code_statistics.cu
  kernels/cuda/ema_update.cu
  kernels/cuda/latent_quantize.cu
  kernels/cuda/lookup_codes.cu
  kernels/cuda/nearest_code.cu
  kernels/cuda/rotation_trick.cu
  kernels/cuda/scalar_quantize.cu
  kernels/cuda/sign_entropy_forward.cu
  kernels/cuda/sign_entropy_totals.cu
  kernels/cuda/unit_vectors.cu)
set(TORCHVQ_CUDA_OPERATORS
  ops/cuda/code_exponents.cpp
  ops/cuda/code_statistics.cpp
  ops/cuda/ema_update_.cpp
  ops/cuda/latent_quantize.cpp
  ops/cuda/lookup_codes.cpp
  ops/cuda/nearest_code.cpp
  ops/cuda/residual_scalar_quantize.cpp
  ops/cuda/rotation_trick.cpp
  ops/cuda/scalar_quantize.cpp
  ops/cuda/sign_entropy.cpp
  ops/cuda/sign_quantize.cpp
  ops/cuda/unit_vectors.cpp)
