// Run-time choice of the instruction set. A kernel is one source, compiled once per level with its
// own flags (instruction_sets.cmake) and reached through one table of function pointers per level.
#pragma once

#include <torchvq/export.h>

namespace torchvq::kernels {

/// kAmx is kAvx512 with tiles of 8-bit integers; few kernels use them.
enum class CpuLevel { kDefault = 0, kAvx2 = 1, kAvx512 = 2, kAmx = 3 };

/// The best level that this build and this machine support, regardless of the environment.
TORCHVQ_API CpuLevel best_cpu_level();

/// The level in use: best_cpu_level(), bounded by two environment variables that are read
/// once: ATEN_CPU_CAPABILITY, which bounds all of torch, and TORCHVQ_SIMD_LEVEL (default,
/// avx2, avx512 or amx), which bounds torchvq alone. Throws c10::ValueError for another
/// value of TORCHVQ_SIMD_LEVEL.
TORCHVQ_API CpuLevel cpu_level();

/// Bounds cpu_level() further, until the next call: for tests and benchmarks that compare levels in
/// one process.
TORCHVQ_API void limit_cpu_level(CpuLevel limit);

// The function that `name` stands for at `level`: name_default, name_avx2 or name_avx512.
#if defined(TORCHVQ_HAVE_X86_LEVELS)
#define TORCHVQ_AT_LEVEL(level, name)                               \
  ((level) >= ::torchvq::kernels::CpuLevel::kAvx512 ? name##_avx512 \
   : (level) == ::torchvq::kernels::CpuLevel::kAvx2 ? name##_avx2   \
                                                    : name##_default)
#else
#define TORCHVQ_AT_LEVEL(level, name) (static_cast<void>(level), name##_default)
#endif

}  // namespace torchvq::kernels
