#include "kernels/cpu/cpu_level.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>

#include <ATen/Version.h>
#include <c10/util/Exception.h>

namespace torchvq::kernels {
namespace {

std::atomic<CpuLevel> level_limit = CpuLevel::kAvx512;

CpuLevel torch_level() {
  const auto capability = at::get_cpu_capability();
  if (capability == "AVX512") return CpuLevel::kAvx512;
  if (capability == "AVX2") return CpuLevel::kAvx2;
  return CpuLevel::kDefault;
}

CpuLevel requested_level() {
  const char* value = std::getenv("TORCHVQ_SIMD_LEVEL");
  const std::string name = value ? value : "";
  if (name.empty() || name == "avx512") return CpuLevel::kAvx512;
  if (name == "avx2") return CpuLevel::kAvx2;
  TORCH_CHECK_VALUE(name == "default",
                    "torchvq: expected TORCHVQ_SIMD_LEVEL to be default, avx2 or avx512, but got ",
                    name);
  return CpuLevel::kDefault;
}

}  // namespace

CpuLevel best_cpu_level() {
#if defined(TORCHVQ_HAVE_X86_LEVELS)
  // These builtins ask the processor, and the operating system whether it saves the wide registers.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return CpuLevel::kDefault;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  return avx512 ? CpuLevel::kAvx512 : CpuLevel::kAvx2;
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
