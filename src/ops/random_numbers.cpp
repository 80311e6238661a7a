#include <torchvq/ops/random_numbers.h>

#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/random_tensor.h"
#include "ops/random_numbers.h"

namespace torchvq {

namespace detail {

at::ScalarType check_random_numbers(const at::Tensor& rng, c10::SymIntArrayRef size,
                                    std::optional<at::ScalarType> dtype) {
  const auto* op = "random_numbers";
  check_rng(op, rng);
  for (const auto& extent : size) {
    TORCH_CHECK_VALUE(extent >= 0, op, ": expected size to be non-negative, but got ", size);
  }
  const auto result = dtype.value_or(at::kFloat);
  TORCH_CHECK_TYPE(result == at::kFloat || result == at::kDouble || result == at::kHalf ||
                       result == at::kBFloat16,
                   op, ": expected dtype to be float16, bfloat16, float32 or float64, but got ",
                   result);
  return result;
}

int uniform_precision(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 53;
    case at::kHalf:
      return 11;
    case at::kBFloat16:
      return 8;
    default:
      return 24;
  }
}

}  // namespace detail

namespace ops {

at::Tensor random_numbers(const at::Tensor& rng, RandomPurpose purpose, Distribution distribution,
                          c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                          int64_t stream) {
  using Signature = at::Tensor(const at::Tensor&, int64_t, c10::SymIntArrayRef, bool,
                               std::optional<at::ScalarType>, int64_t);
  static auto op = detail::op_handle<Signature>("torchvq::random_numbers");
  return op.call(rng, static_cast<int64_t>(purpose), size, distribution == Distribution::kNormal,
                 dtype, stream);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "random_numbers(Tensor rng, int purpose, SymInt[] size, *, bool normal=False, "
      "ScalarType? dtype=None, int stream=0) -> Tensor");
}
