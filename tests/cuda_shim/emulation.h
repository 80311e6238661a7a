// Runs the CUDA operators on CPU tensors by emulation. Only in the library torchvq_emulated.
#pragma once

#include "settings.h"

namespace torchvq::cuda_shim {

/// During its lifetime, operators with a CUDA kernel run that, emulated, instead of the CPU's.
class __attribute__((visibility("default"))) Emulation {
 public:
  Emulation();
  ~Emulation();
  Emulation(const Emulation&) = delete;
  Emulation& operator=(const Emulation&) = delete;
};

}  // namespace torchvq::cuda_shim

/// The same for ctypes; 1 switches it on, 0 off.
extern "C" __attribute__((visibility("default"))) void torchvq_emulate_cuda(int on);
/// Settings of the emulation, by the numbers of their enumerators.
extern "C" __attribute__((visibility("default"))) void torchvq_set_emulation(int accumulation,
                                                                             int order,
                                                                             int capability,
                                                                             int shared);
/// Kernels launched since the program started.
extern "C" __attribute__((visibility("default"))) long long torchvq_emulated_launches();
