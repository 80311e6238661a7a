#include "detail/untouched_zeros.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

namespace torchvq::detail {
namespace {

// Below this, writing zeros is as fast as a system call.
constexpr size_t kLeastBytes = 1 << 16;

}  // namespace

at::Tensor untouched_zeros(at::IntArrayRef sizes) {
  const auto bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * sizeof(int64_t);
#if defined(__unix__) || defined(__APPLE__)
  if (bytes >= kLeastBytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory != MAP_FAILED) {
      return at::from_blob(
          memory, sizes, [bytes](void* start) { munmap(start, bytes); },
          at::TensorOptions(at::kLong));
    }
  }
#endif
  return at::zeros(sizes, at::kLong);
}

}  // namespace torchvq::detail
