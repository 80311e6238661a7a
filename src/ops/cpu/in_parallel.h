#pragma once

#include <ATen/Parallel.h>

#include <functional>

namespace torchvq::detail {

/// at::parallel_for for kernels, which do not depend on torch.
inline void in_parallel(int64_t count, int64_t grain,
                        const std::function<void(int64_t, int64_t)>& body) {
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) { body(begin, end); });
}

}  // namespace torchvq::detail
