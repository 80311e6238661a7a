#include <torchvq/ops/dead_code_candidates.h>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/metric.h"
#include "detail/op_handle.h"
#include "detail/random_tensor.h"
#include "detail/token_mask.h"
#include "ops/dead_code_candidates.h"

namespace torchvq {

namespace detail {

void check_candidate_source(const char* op, const at::Tensor& x, const at::Tensor& rng,
                            const std::optional<at::Tensor>& mask) {
  check_floating(op, "x", x);
  check_rank(op, "x", x, 3, "(H, N, D)");
  TORCH_CHECK_VALUE(x.sym_size(2) >= 1, op,
                    ": expected x to have at least 1 dimension, but got shape ", x.sym_sizes());
  check_rng(op, rng);
  check_same_device(op, "x", x, "rng", rng);
  check_token_mask(op, mask, x);
}

bool check_dead_code_candidates(const at::Tensor& x, const at::Tensor& rng, int64_t count,
                                const std::optional<at::Tensor>& mask, std::string_view metric) {
  constexpr auto op = "dead_code_candidates";
  check_candidate_source(op, x, rng, mask);
  TORCH_CHECK_VALUE(count >= 1, op, ": expected count to be at least 1, but got ", count);
  return is_cosine(op, metric);
}

}  // namespace detail

namespace ops {

std::pair<at::Tensor, at::Tensor> dead_code_candidates(const at::Tensor& x, const at::Tensor& rng,
                                                       int64_t count,
                                                       const std::optional<at::Tensor>& mask,
                                                       const std::string& metric) {
  using Signature =
      std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, const at::Tensor&, int64_t,
                                         const std::optional<at::Tensor>&, std::string_view);
  static auto op = detail::op_handle<Signature>("torchvq::dead_code_candidates");
  auto [keys, rows] = op.call(x, rng, count, mask, metric);
  return {std::move(keys), std::move(rows)};
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "dead_code_candidates(Tensor x, Tensor rng, int count, *, Tensor? mask=None, str "
      "metric=\"euclidean\") -> "
      "(Tensor keys, Tensor rows)");
}
