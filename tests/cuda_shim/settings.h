// Settings of the emulation for tests; defines no names of CUDA.
#pragma once

#include <cstdint>

namespace torchvq::cuda_shim {

/// How mma sums its sixteen products and the previous value.
enum class Accumulation {
  kNearest,   ///< exactly, rounded once
  kTruncate,  ///< terms cut to the 24 bits of the largest, as tensor cores are known to
  kWorst      ///< and moved by all that the error model of the kernels allows, up or down
};

enum class Order { kForward, kBackward, kShuffled };

struct Settings {
  Accumulation accumulation = Accumulation::kTruncate;
  Order order = Order::kForward;
  int fault = 0;           ///< what a kernel shall do wrong, by the numbers of its header
  int capability = 8;      ///< of the device: below 8 it runs no kernel
  int shared = 99 * 1024;  ///< bytes that a block may have: the fewest of cards that run kernels
};

__attribute__((visibility("default"))) Settings& settings();

/// Kernels launched since the program started.
__attribute__((visibility("default"))) int64_t launches();

}  // namespace torchvq::cuda_shim
