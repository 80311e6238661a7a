// Instructions and launches for which CUDA C++ has no portable name; the emulation has the same
// functions in tests/cuda_shim/cuda_shim.h. Included by cuda.h.
#pragma once

#include <atomic>
#include <cassert>

#include "kernels/cuda/namespace.h"

namespace torchvq::kernels::cuda {

__device__ inline float half_to_float(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}
/// Rounds to nearest, ties to even; infinite beyond 65504.
__device__ inline uint16_t float_to_half(float value) {
  return __half_as_ushort(__float2half_rn(value));
}

/// The dynamic shared memory of the launch, 16-byte aligned.
template <typename T>
__device__ inline T* shared_memory() {
  extern __shared__ __align__(16) unsigned char torchvq_shared_memory[];
  return reinterpret_cast<T*>(torchvq_shared_memory);
}

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

/// a & b | c in one instruction.
__device__ inline unsigned bits_or(unsigned a, unsigned b, unsigned c) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;\n" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

/// Starts to copy 16 bytes from global to shared memory, both 16-byte aligned.
__device__ inline void copy_async_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(to)),
               "l"(__cvta_generic_to_global(from))
               : "memory");
}
/// Closes a group of this thread's copies.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits for all but the last `left` groups of this thread; other threads see
/// the data after a barrier.
template <int left>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(left) : "memory");
}

/// Loads four 8 x 8 matrices of 16-bit numbers; lane i passes the address of row i % 8 of
/// matrix i / 8, 16 bytes in shared memory. Lane i receives columns i % 4 * 2 and the next of
/// row i / 4 of each matrix.
__device__ inline void load_matrices(uint32_t (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

/// sum += a b: 16 x 16 times 16 x 8 in half precision, accumulated in float32.
__device__ inline void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Whether kernels for this architecture have the products of groups of four warps, those of sm_90a.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kHasGroupProducts = true;
#else
constexpr bool kHasGroupProducts = false;
#endif

/// Makes this thread's writes to shared memory visible to the tensor cores, after the next barrier.
__device__ inline void publish_to_group_products() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

/// A tile of lines of 128 bytes, whose 16-byte pieces are permuted within each line; a multiple of 1024 bytes.
__device__ inline uint64_t group_operand(const void* tile) {
  constexpr uint64_t kEightLines = 1024 >> 4, kPermuted = uint64_t{1} << 62;
  return (shared_address(tile) & 0x3ffff) >> 4 | uint64_t{1} << 16 | kEightLines << 32 | kPermuted;
}

/// sum += a b, or sum = a b: 64 x 64 times 64 x 128 in half precision, accumulated in float32 16 products at a time; by a
/// group of four warps, which runs meanwhile() while they compute. a and b have 64 and 128 lines of 64 numbers, permuted as place_in_group_tile() says, and stay as
/// they are until all warps return. Of warp w of the group, lane i has, as sum[j][2 r + c], row 16 w + 8 r + i / 4
/// and column 8 j + i % 4 * 2 + c.
template <typename Meanwhile>
__device__ inline void multiply_add_group(float (&sum)[16][4], const uint16_t* a, const uint16_t* b,
                                          bool add, const Meanwhile& meanwhile) {
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const auto keep = [&] {
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
      for (int v = 0; v < 4; ++v) asm volatile("" : "+f"(sum[j][v])::"memory");
  };
  keep();
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint64_t rows = group_operand(a) + 2 * k, columns = group_operand(b) + 2 * k;
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, "
        "%9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, "
        "%65, add, 1, 1, 0, 0;\n}\n"
        : "+f"(sum[0][0]), "+f"(sum[0][1]), "+f"(sum[0][2]), "+f"(sum[0][3]), "+f"(sum[1][0]),
          "+f"(sum[1][1]), "+f"(sum[1][2]), "+f"(sum[1][3]), "+f"(sum[2][0]), "+f"(sum[2][1]),
          "+f"(sum[2][2]), "+f"(sum[2][3]), "+f"(sum[3][0]), "+f"(sum[3][1]), "+f"(sum[3][2]),
          "+f"(sum[3][3]), "+f"(sum[4][0]), "+f"(sum[4][1]), "+f"(sum[4][2]), "+f"(sum[4][3]),
          "+f"(sum[5][0]), "+f"(sum[5][1]), "+f"(sum[5][2]), "+f"(sum[5][3]), "+f"(sum[6][0]),
          "+f"(sum[6][1]), "+f"(sum[6][2]), "+f"(sum[6][3]), "+f"(sum[7][0]), "+f"(sum[7][1]),
          "+f"(sum[7][2]), "+f"(sum[7][3]), "+f"(sum[8][0]), "+f"(sum[8][1]), "+f"(sum[8][2]),
          "+f"(sum[8][3]), "+f"(sum[9][0]), "+f"(sum[9][1]), "+f"(sum[9][2]), "+f"(sum[9][3]),
          "+f"(sum[10][0]), "+f"(sum[10][1]), "+f"(sum[10][2]), "+f"(sum[10][3]), "+f"(sum[11][0]),
          "+f"(sum[11][1]), "+f"(sum[11][2]), "+f"(sum[11][3]), "+f"(sum[12][0]), "+f"(sum[12][1]),
          "+f"(sum[12][2]), "+f"(sum[12][3]), "+f"(sum[13][0]), "+f"(sum[13][1]), "+f"(sum[13][2]),
          "+f"(sum[13][3]), "+f"(sum[14][0]), "+f"(sum[14][1]), "+f"(sum[14][2]), "+f"(sum[14][3]),
          "+f"(sum[15][0]), "+f"(sum[15][1]), "+f"(sum[15][2]), "+f"(sum[15][3])
        : "l"(rows), "l"(columns), "r"(static_cast<int>(add || k > 0)));
  }
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
  meanwhile();
  asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
  keep();
#endif
}

/// Checks a precondition that only the device can check. If it fails, the kernel ends with an error
/// that CUDA reports at the next synchronisation, as with torch's own indexing.
__device__ inline void expect(bool promised, const char* message) {
  if (!promised) __assert_fail(message, "torchvq", 0, "kernel");
}

inline Error error_of(cudaError_t code) {
  return code == cudaSuccess ? nullptr : cudaGetErrorString(code);
}

/// Runs kernel(arguments...) on `grid` blocks of `threads` threads with `shared` bytes of
/// shared_memory(). Grids have one dimension besides that of tasks; kernels compute
/// further coordinates themselves.
template <typename... Parameters, typename... Arguments>
Error launch(void (*kernel)(Parameters...), const Queue& queue, Grid grid, unsigned threads,
             size_t shared, Arguments... arguments) {
  // This library links its own CUDA runtime, whose current device may differ from torch's.
  if (const auto error = cudaSetDevice(queue.device)) return error_of(error);
  if (shared > 48 * 1024) {
    const auto error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
    if (error) return error_of(error);
  }
  kernel<<<dim3(grid.blocks, grid.tasks), dim3(threads), shared,
           static_cast<cudaStream_t>(queue.stream)>>>(static_cast<Parameters>(arguments)...);
  return error_of(cudaGetLastError());
}

/// Sets `bytes` bytes to `value`, ordered after the work already in the queue.
inline Error fill_bytes(const Queue& queue, void* to, int value, size_t bytes) {
  if (const auto error = cudaSetDevice(queue.device)) return error_of(error);
  return error_of(cudaMemsetAsync(to, value, bytes, static_cast<cudaStream_t>(queue.stream)));
}

/// An attribute of a device, which is asked for once; 0 if it cannot be determined.
template <cudaDeviceAttr attribute>
int attribute_of(int device) {
  constexpr int kRemembered = 64, kUnknown = -1;
  static std::atomic<int> known[kRemembered] = {};  // plus one, since 0 means unknown
  const bool remembers = device >= 0 && device < kRemembered;
  const int before = remembers ? known[device].load() - 1 : kUnknown;
  if (before != kUnknown) return before;
  int value = 0;
  if (cudaDeviceGetAttribute(&value, attribute, device) != cudaSuccess) {
    cudaGetLastError();  // clears the error, so that the next launch does not report it
    value = 0;
  }
  if (remembers) known[device].store(value + 1);
  return value;
}

/// The major compute capability; 0 if it cannot be determined.
inline int capability_of(int device) {
  return attribute_of<cudaDevAttrComputeCapabilityMajor>(device);
}

/// Number of multiprocessors; 0 if it cannot be determined.
inline int processors_of(const Queue& queue) {
  return attribute_of<cudaDevAttrMultiProcessorCount>(queue.device);
}

/// Bytes of shared memory that a block may request: 99 KiB on 8.6, 8.9 and 12.0, 163 on 8.0, 227 on
/// 9.0 and 10.0; 0 if it cannot be determined.
inline int shared_memory_of(const Queue& queue) {
  return attribute_of<cudaDevAttrMaxSharedMemoryPerBlockOptin>(queue.device);
}

}  // namespace torchvq::kernels::cuda
