// Runs work whose bits depend on the number of threads.
#pragma once

#include <ATen/Parallel.h>

namespace torchvq::functional {

/// Runs work() so that it uses a single thread: LAPACK and reductions give different bits for
/// different numbers of threads, and use one thread within a parallel region.
template <typename Work>
void on_one_thread(const Work& work) {
  at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t) {
    if (begin == 0) work();
  });
}

}  // namespace torchvq::functional
