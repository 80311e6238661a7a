#include "detail/fixed_point.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>

#include "detail/checks.h"
#include "detail/exponents.h"
#include "kernels/exponents.h"

namespace torchvq::detail {
namespace {

at::Tensor sticky(const at::Tensor& sums) {
  constexpr auto kLimit = int64_t{1} << 53;
  const auto large = sums.ge(kLimit).logical_or(sums.le(-kLimit));
  const auto dropped = sums.bitwise_and(0x7ff).ne(0);
  return at::where(large.logical_and(dropped), sums.bitwise_and(~int64_t{0x7ff}).bitwise_or(0x800),
                   sums);
}

at::Tensor join_words(const at::Tensor& sums, const at::Tensor& rests) {
  const auto whole = sums + rests.bitwise_right_shift(32);
  const auto high = whole.to(at::kDouble);
  const auto fraction = rests.bitwise_and(0xffffffff).to(at::kDouble) * 0x1p-32;
  return high + ((whole - high.to(at::kLong)).to(at::kDouble) + fraction);
}

}  // namespace

at::Tensor decode_to_double(const at::Tensor& sums, const at::Tensor& exponents,
                            at::ScalarType dtype) {
  const auto scale = power_of_two(clamp_exponents(exponents) - kernels::kUnitBits).unsqueeze(-1);
  if (sums.size(0) == 2) return join_words(sums[0], sums[1]) * scale;
  return (dtype == at::kDouble ? sums[0] : sticky(sums[0])).to(at::kDouble) * scale;
}

void check_sums(const char* op, const at::Tensor& sums, const at::Tensor& exponents) {
  check_dtype(op, "sums", sums, at::kLong);
  check_dtype(op, "exponents", exponents, at::kInt);
  check_rank(op, "sums", sums, 4, "(W, H, K, D)");
  check_rank(op, "exponents", exponents, 2, "(H, K)");
  TORCH_CHECK_VALUE(sums.sym_size(0) == 1 || sums.sym_size(0) == 2, op,
                    ": expected sums to have 1 or 2 words on axis 0, but got shape ",
                    sums.sym_sizes());
  check_size(op, "exponents", exponents, 0, sums.sym_size(1), "heads of sums");
  check_size(op, "exponents", exponents, 1, sums.sym_size(2), "codes of sums");
  check_same_device(op, "sums", sums, "exponents", exponents);
}

}  // namespace torchvq::detail
