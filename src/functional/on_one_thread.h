// Work whose bits depend on how many threads share it.
#pragma once

#include <ATen/Parallel.h>

namespace torchvq::functional {

/// Runs work() with a single thread for what it calls: LAPACK and reductions give other bits with
/// other numbers of threads, and within a parallel region they take one.
template <typename Work>
void on_one_thread(const Work& work) {
  at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t) {
    if (begin == 0) work();
  });
}

}  // namespace torchvq::functional
