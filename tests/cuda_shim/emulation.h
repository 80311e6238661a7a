// The CUDA operators on CPU tensors, run by the emulation. In the library torchvq_emulated only.
#pragma once

#include "settings.h"

namespace torchvq::cuda_shim {

/// While it lives, operators that have a CUDA kernel run it, emulated, in the place of the CPU's.
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
                                                                             int order, int fault);
/// Kernels launched since the program began.
extern "C" __attribute__((visibility("default"))) long long torchvq_emulated_launches();
