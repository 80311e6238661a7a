// Each thread moves one unit of a row, the widest to which rows and pointers are aligned; adjacent
// threads move adjacent units.
#include "kernels/cuda/lookup_codes.h"

#include "kernels/cuda/cuda.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr int kThreads = 256;

struct alignas(16) SixteenBytes {
  uint32_t words[4];
};

template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    lookup_rows(const Unit* codebook, const int64_t* indices, Unit* codes, int64_t rows,
                int64_t tokens, int64_t size, int64_t units, int across) {
  const int at_once = kThreads / across, own = static_cast<int>(threadIdx.x) / across;
  const int64_t step = static_cast<int64_t>(gridDim.x) * at_once;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * at_once + own; row < rows; row += step) {
    const int64_t index = indices[row];
    expect(index >= -1 && index < size, "lookup_codes: indices are in [-1, codes)");
    const Unit* from = codebook + (row / tokens * size + (index < 0 ? 0 : index)) * units;
    for (int64_t unit = static_cast<int>(threadIdx.x) % across; unit < units; unit += across) {
      codes[row * units + unit] = index < 0 ? Unit{} : from[unit];
    }
  }
}

template <typename Unit>
bool is_aligned(const LookupCodesTask& task) {
  const auto from = reinterpret_cast<uintptr_t>(task.codebook);
  const auto to = reinterpret_cast<uintptr_t>(task.codes);
  return (from | to | static_cast<uintptr_t>(task.row_bytes)) % sizeof(Unit) == 0;
}

template <typename Unit>
Error lookup_as(const LookupCodesTask& task, const Queue& queue) {
  const int64_t units = task.row_bytes / static_cast<int64_t>(sizeof(Unit));
  int across = 1;
  while (across < units && across < 32) across *= 2;
  const int64_t rows = task.heads * task.tokens;
  return launch(lookup_rows<Unit>, queue, blocks_for(rows, kThreads / across), kThreads, 0,
                static_cast<const Unit*>(task.codebook), task.indices,
                static_cast<Unit*>(task.codes), rows, task.tokens, task.size, units, across);
}

}  // namespace

Error lookup_codes(const LookupCodesTask& task, const Queue& queue) {
  if (task.heads * task.tokens * task.row_bytes == 0) return nullptr;
  if (is_aligned<SixteenBytes>(task)) return lookup_as<SixteenBytes>(task, queue);
  if (is_aligned<uint32_t>(task)) return lookup_as<uint32_t>(task, queue);
  if (is_aligned<uint16_t>(task)) return lookup_as<uint16_t>(task, queue);
  return lookup_as<uint8_t>(task, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
