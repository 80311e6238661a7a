// CUDA in plain C++: compiles a .cu as C++ and runs its blocks one after another, each thread as a
// fiber. Shared memory, barriers, shuffles, votes, atomics, asynchronous copies, ldmatrix and mma
// behave as on a GPU, as far as the kernels of this project need it: blocks of one dimension, and
// collectives of whole warps. It detects barriers that some threads miss, and reads of
// uninitialised memory (shared memory starts as NaN); it detects data races only if the order of
// threads, which a test may shuffle, changes the result.
#pragma once

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>

#include "kernels/cuda/namespace.h"
#include "settings.h"

#define TORCHVQ_CUDA_GROUP_PRODUCTS
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
// Blocks run one after another, so shared memory can be static.
#define __shared__ static
#define __constant__ static

struct uint3 {
  unsigned x = 0, y = 0, z = 0;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) double2 {
  double x, y;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// Exported by the emulation's library, whose other names are hidden.
#pragma GCC visibility push(default)
namespace torchvq::cuda_shim {

extern uint3 thread_index, block_index, block_size, grid_size;

void run(unsigned blocks, unsigned tasks, unsigned threads, size_t shared,
         const std::function<void()>& thread);
void barrier();
unsigned char* shared_bytes();
/// The value that a lane passes to the others of its warp; all lanes exchange together.
struct Exchanged {
  uint64_t word[3];
};
/// The values of all lanes; valid until this lane's next exchange but one.
const Exchanged* exchange(const Exchanged& own);
void copy_later(void* to, const void* from);
void commit_copies();
void wait_for_copies(int left);
/// Ends the launch, which returns this message.
void fail(const char* message);
void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
/// sum += a b, of line `row` of a and line `column` of b, as multiply_add_group has them.
void multiply_add_lines(float& sum, const uint16_t* a, int row, const uint16_t* b, int column);
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);

template <typename T>
const Exchanged* exchange_value(T value) {
  static_assert(sizeof(T) <= 8);
  Exchanged own = {};
  std::memcpy(own.word, &value, sizeof(T));
  return exchange(own);
}

template <typename T>
T value_of(const Exchanged& exchanged) {
  T value;
  std::memcpy(&value, exchanged.word, sizeof(T));
  return value;
}

inline int lane() { return static_cast<int>(thread_index.x % 32); }

template <typename T>
T value_of_lane(T value, int source) {
  return value_of<T>(exchange_value(value)[source & 31]);
}

}  // namespace torchvq::cuda_shim
#pragma GCC visibility pop

#define threadIdx (::torchvq::cuda_shim::thread_index)
#define blockIdx (::torchvq::cuda_shim::block_index)
#define blockDim (::torchvq::cuda_shim::block_size)
#define gridDim (::torchvq::cuda_shim::grid_size)

inline void __syncthreads() { torchvq::cuda_shim::barrier(); }
inline void __syncwarp(unsigned = 0xffffffffu) { torchvq::cuda_shim::exchange({}); }
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T>
T __shfl_sync(unsigned, T value, int source, int width = 32) {
  const int lane = torchvq::cuda_shim::lane();
  return torchvq::cuda_shim::value_of_lane(value, lane / width * width + source % width);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return torchvq::cuda_shim::value_of_lane(value, torchvq::cuda_shim::lane() ^ mask);
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned by) {
  const int lane = torchvq::cuda_shim::lane(), from = lane + static_cast<int>(by);
  return torchvq::cuda_shim::value_of_lane(value, from < 32 ? from : lane);
}
template <typename T>
T __shfl_up_sync(unsigned, T value, unsigned by) {
  const int lane = torchvq::cuda_shim::lane(), from = lane - static_cast<int>(by);
  return torchvq::cuda_shim::value_of_lane(value, from >= 0 ? from : lane);
}

inline unsigned __ballot_sync(unsigned, int predicate) {
  const auto* all = torchvq::cuda_shim::exchange_value(predicate != 0);
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i)
    bits |= static_cast<unsigned>(torchvq::cuda_shim::value_of<bool>(all[i])) << i;
  return bits;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) {
  return __ballot_sync(mask, predicate) == 0xffffffffu;
}
template <typename T>
T __reduce_add_sync(unsigned, T value) {
  const auto* all = torchvq::cuda_shim::exchange_value(value);
  T sum = 0;
  for (int i = 0; i < 32; ++i) sum += torchvq::cuda_shim::value_of<T>(all[i]);
  return sum;
}
template <typename T>
T __reduce_max_sync(unsigned, T value) {
  const auto* all = torchvq::cuda_shim::exchange_value(value);
  for (int i = 0; i < 32; ++i) {
    const T other = torchvq::cuda_shim::value_of<T>(all[i]);
    value = other > value ? other : value;
  }
  return value;
}
template <typename T>
T __reduce_min_sync(unsigned, T value) {
  const auto* all = torchvq::cuda_shim::exchange_value(value);
  for (int i = 0; i < 32; ++i) {
    const T other = torchvq::cuda_shim::value_of<T>(all[i]);
    value = other < value ? other : value;
  }
  return value;
}

template <typename T, typename V>
T atomicAdd(T* at, V value) {
  const T before = *at;
  *at = static_cast<T>(before + static_cast<T>(value));
  return before;
}
template <typename T, typename V>
T atomicMax(T* at, V value) {
  const T before = *at;
  if (static_cast<T>(value) > before) *at = static_cast<T>(value);
  return before;
}
template <typename T, typename V>
T atomicMin(T* at, V value) {
  const T before = *at;
  if (static_cast<T>(value) < before) *at = static_cast<T>(value);
  return before;
}
template <typename T, typename V>
T atomicOr(T* at, V value) {
  const T before = *at;
  *at = before | static_cast<T>(value);
  return before;
}
template <typename T, typename V>
T atomicExch(T* at, V value) {
  const T before = *at;
  *at = static_cast<T>(value);
  return before;
}
template <typename T>
T atomicCAS(T* at, T expected, T value) {
  const T before = *at;
  if (before == expected) *at = value;
  return before;
}

template <typename T>
T __ldg(const T* at) {
  return *at;
}

template <typename To, typename From>
To cuda_shim_cast(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof(To));
  return result;
}
inline unsigned __float_as_uint(float value) { return cuda_shim_cast<unsigned>(value); }
inline int __float_as_int(float value) { return cuda_shim_cast<int>(value); }
inline float __uint_as_float(unsigned value) { return cuda_shim_cast<float>(value); }
inline float __int_as_float(int value) { return cuda_shim_cast<float>(value); }
inline long long __double_as_longlong(double value) { return cuda_shim_cast<long long>(value); }
inline double __longlong_as_double(long long value) { return cuda_shim_cast<double>(value); }

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __double2float_rn(double a) { return static_cast<float>(a); }
inline float __double2float_ru(double a) {
  const auto rounded = static_cast<float>(a);
  return static_cast<double>(rounded) < a ? std::nextafter(rounded, HUGE_VALF) : rounded;
}
inline long long __double2ll_rn(double a) { return std::llrint(a); }
inline int __float2int_rn(float a) { return static_cast<int>(std::lrint(a)); }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __clz(int a) { return a == 0 ? 32 : __builtin_clz(static_cast<unsigned>(a)); }
inline int __clzll(long long a) {
  return a == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(a));
}
inline int __ffs(int a) { return __builtin_ffs(a); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
template <typename T>
T min(T a, T b) {
  return b < a ? b : a;
}
template <typename T>
T max(T a, T b) {
  return a < b ? b : a;
}
using std::fma;
using std::fmaf;
using std::isfinite;
using std::isinf;
using std::isnan;

// Counterpart of src/kernels/cuda/device-inl.h, which is for a GPU.
namespace torchvq::kernels::emulated {

using cuda_shim::commit_copies;
using cuda_shim::float_to_half;
using cuda_shim::half_to_float;
using cuda_shim::multiply_add;

template <typename T>
T* shared_memory() {
  return reinterpret_cast<T*>(cuda_shim::shared_bytes());
}

inline void expect(bool promised, const char* message) {
  if (!promised) cuda_shim::fail(message);
}

inline unsigned bits_or(unsigned a, unsigned b, unsigned c) { return (a & b) | c; }

inline void copy_async_16(void* to, const void* from) { cuda_shim::copy_later(to, from); }

template <int left>
void wait_for_copies() {
  cuda_shim::wait_for_copies(left);
}

inline void load_matrices(uint32_t (&to)[4], const void* row) {
  const auto* rows = cuda_shim::exchange_value(row);
  const int lane = cuda_shim::lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    const auto* from = cuda_shim::value_of<const unsigned char*>(rows[matrix * 8 + lane / 4]);
    std::memcpy(&to[matrix], from + lane % 4 * 4, 4);
  }
  // A GPU reads the values when the last lane arrives; no lane may overwrite them before that.
  cuda_shim::exchange({});
}

constexpr bool kHasGroupProducts = true;

inline void publish_to_group_products() {}

template <typename Meanwhile>
void multiply_add_group(float (&sum)[16][4], const uint16_t* a, const uint16_t* b, bool add,
                        const Meanwhile& meanwhile) {
  meanwhile();
  const int warp = static_cast<int>(threadIdx.x) / 32 % 4, lane = cuda_shim::lane();
  for (int j = 0; j < 16; ++j) {
    for (int v = 0; v < 4; ++v) {
      if (!add) sum[j][v] = 0;
      cuda_shim::multiply_add_lines(sum[j][v], a, warp * 16 + v / 2 * 8 + lane / 4, b,
                                    j * 8 + lane % 4 * 2 + v % 2);
    }
  }
}

template <typename... Parameters, typename... Arguments>
Error launch(void (*kernel)(Parameters...), const Queue&, Grid grid, unsigned threads,
             size_t shared, Arguments... arguments) {
  try {
    const std::tuple<Parameters...> values(static_cast<Parameters>(arguments)...);
    cuda_shim::run(grid.blocks, grid.tasks, threads, shared, [&] { std::apply(kernel, values); });
  } catch (const char* error) {
    return error;
  }
  return nullptr;
}

inline Error fill_bytes(const Queue&, void* to, int value, size_t bytes) {
  std::memset(to, value, bytes);
  return nullptr;
}

inline int capability_of(int) { return cuda_shim::settings().capability; }

/// Few, so that loops over the grid take more than one step.
inline int processors_of(const Queue&) { return 2; }

inline int shared_memory_of(const Queue&) { return cuda_shim::settings().shared; }

}  // namespace torchvq::kernels::emulated
