#include <torchvq/ops/kmeans.h>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/metric.h"
#include "detail/op_handle.h"
#include "ops/capture.h"
#include "ops/dead_code_candidates.h"
#include "ops/kmeans.h"

namespace torchvq {

namespace detail {

bool check_kmeans(const at::Tensor& x, int64_t codebook_size, const at::Tensor& rng,
                  int64_t iterations, std::string_view metric,
                  const std::optional<at::Tensor>& mask) {
  constexpr auto op = "kmeans";
  check_candidate_source(op, x, rng, mask);
  TORCH_CHECK_VALUE(codebook_size >= 1, op, ": expected codebook_size to be at least 1, but got ",
                    codebook_size);
  TORCH_CHECK_VALUE(iterations >= 0, op, ": expected iterations to be at least 0, but got ",
                    iterations);
  return is_cosine(op, metric);
}

}  // namespace detail

namespace ops {

std::pair<at::Tensor, at::Tensor> kmeans(const at::Tensor& x, int64_t codebook_size,
                                         const at::Tensor& rng, int64_t iterations,
                                         const std::string& metric,
                                         const std::optional<at::Tensor>& mask) {
  using Signature =
      std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, int64_t, const at::Tensor&, int64_t,
                                         std::string_view, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::kmeans");
  auto [codebook, counts] = op.call(x, codebook_size, rng, iterations, metric, mask);
  return {std::move(codebook), std::move(counts)};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "kmeans(Tensor x, int codebook_size, Tensor rng, *, int iterations=10, str "
      "metric=\"euclidean\", "
      "Tensor? mask=None) -> (Tensor codebook, Tensor counts)",
      torchvq::detail::waits());
}
