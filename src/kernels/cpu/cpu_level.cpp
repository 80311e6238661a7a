#include "kernels/cpu/cpu_level.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include <ATen/Version.h>
#include <c10/util/Exception.h>

#if defined(TORCHVQ_HAVE_X86_LEVELS) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace torchvq::kernels {
namespace {

std::atomic<CpuLevel> level_limit = CpuLevel::kAmx;

CpuLevel torch_level() {
  const auto capability = at::get_cpu_capability();
  if (capability == "AVX512") return CpuLevel::kAmx;
  if (capability == "AVX2") return CpuLevel::kAvx2;
  return CpuLevel::kDefault;
}

CpuLevel requested_level() {
  const char* value = std::getenv("TORCHVQ_SIMD_LEVEL");
  const std::string name = value ? value : "";
  if (name.empty() || name == "amx") return CpuLevel::kAmx;
  if (name == "avx512") return CpuLevel::kAvx512;
  if (name == "avx2") return CpuLevel::kAvx2;
  TORCH_CHECK_VALUE(
      name == "default",
      "torchvq: expected TORCHVQ_SIMD_LEVEL to be default, avx2, avx512 or amx, but got ", name);
  return CpuLevel::kDefault;
}

#if defined(TORCHVQ_HAVE_X86_LEVELS) && defined(__linux__)
/// Whether there are tiles of 8-bit integers and Linux lets this process use them,
/// which a process must request.
bool ask_for_amx() {
  constexpr unsigned kTile = 1U << 24, kInt8 = 1U << 25;  // of leaf 7, edx
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kTile) == 0 || (d & kInt8) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#elif defined(TORCHVQ_HAVE_X86_LEVELS)
bool ask_for_amx() { return false; }
#endif

}  // namespace

CpuLevel best_cpu_level() {
#if defined(TORCHVQ_HAVE_X86_LEVELS)
  // These builtins check the processor, and that the operating system saves the wide registers.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return CpuLevel::kDefault;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  if (!avx512) return CpuLevel::kAvx2;
  static const bool amx = ask_for_amx();
  return amx ? CpuLevel::kAmx : CpuLevel::kAvx512;
#else
  return CpuLevel::kDefault;
#endif
}

CpuLevel cpu_level() {
  static const CpuLevel level = std::min({best_cpu_level(), torch_level(), requested_level()});
  return std::min(level, level_limit.load(std::memory_order_relaxed));
}

void limit_cpu_level(CpuLevel limit) { level_limit.store(limit, std::memory_order_relaxed); }

}  // namespace torchvq::kernels
