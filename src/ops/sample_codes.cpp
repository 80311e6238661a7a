#include <torchvq/ops/sample_codes.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/random_tensor.h"
#include "detail/token_checks.h"
#include "ops/capture.h"
#include "ops/nearest_code.h"
#include "ops/sample_codes.h"

namespace torchvq {

namespace detail {

Metric check_sample_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                          double temperature, c10::string_view metric,
                          std::optional<int64_t> topk) {
  constexpr auto op = "sample_codes";
  check_tokens(op, "x", x);
  check_has_dim(op, x);
  check_codebook_of(op, codebook, x);
  check_rng(op, rng);
  check_same_device(op, "x", x, "rng", rng);
  check_non_negative(op, "temperature", temperature);
  check_topk(op, topk, codebook);
  return parse_metric(op, metric);
}

}  // namespace detail

namespace ops {

at::Tensor sample_codes(const at::Tensor& x, const at::Tensor& codebook, const at::Tensor& rng,
                        double temperature, c10::string_view metric, int64_t stream,
                        std::optional<int64_t> topk) {
  using Signature = at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, double,
                               c10::string_view, int64_t, std::optional<int64_t>);
  static auto op = detail::op_handle<Signature>("torchvq::sample_codes");
  return op.call(x, codebook, rng, temperature, metric, stream, topk);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "sample_codes(Tensor x, Tensor codebook, Tensor rng, *, float temperature, str metric, "
      "int stream=0, int? topk=None) -> Tensor",
      torchvq::detail::searches());
}
