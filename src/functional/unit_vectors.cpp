#include "functional/unit_vectors.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

namespace torchvq::functional {

at::Tensor unit_vectors(const at::Tensor& x_) {
  const auto x = x_.contiguous();
  auto result = at::empty_like(x);
  const auto* from = x.const_data_ptr<float>();
  auto* to = result.mutable_data_ptr<float>();
  const int64_t dim = x.size(1);
  at::parallel_for(0, x.size(0), std::max<int64_t>(1, 32768 / (dim + 1)),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t row = begin; row < end; ++row) {
                       const auto* values = from + row * dim;
                       double squares = 0;
                       for (int64_t d = 0; d < dim; ++d)
                         squares += static_cast<double>(values[d]) * values[d];
                       const double norm = squares == 0 ? 1 : std::sqrt(squares);
                       for (int64_t d = 0; d < dim; ++d)
                         to[row * dim + d] = static_cast<float>(values[d] / norm);
                     }
                   });
  return result;
}

}  // namespace torchvq::functional
