#include "ops/sign_entropy.h"

#include <torch/library.h>

#include <torchvq/ops/sign_entropy.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "detail/precision.h"
#include "detail/token_checks.h"
#include "detail/token_mask.h"

namespace torchvq {

namespace detail {

std::vector<SignGroup> sign_groups(int64_t bits) {
  const int64_t count = (bits + kMostJointBits - 1) / kMostJointBits;
  std::vector<SignGroup> groups;
  int64_t first = 0, offset = 0;
  for (int64_t g = 0; g < count; ++g) {
    const int64_t size = bits / count + (g < bits % count ? 1 : 0);
    groups.push_back({first, size, size / 2, offset});
    first += size;
    offset += groups.back().size();
  }
  return groups;
}

int64_t sign_totals_size(int64_t bits) {
  const auto last = sign_groups(bits).back();
  return last.offset + last.size() + 3;
}

void check_sign_entropy(const at::Tensor& x, double sharpness,
                        const std::optional<at::Tensor>& mask,
                        const std::optional<at::Tensor>& totals) {
  constexpr auto op = "sign_entropy";
  check_tokens(op, "x", x);
  TORCH_CHECK_VALUE(x.sym_size(2) >= 1 && x.sym_size(2) <= 62, op,
                    ": expected x to have 1 to 62 features, but got shape ", x.sym_sizes());
  check_non_negative(op, "sharpness", sharpness);
  check_fits(op, "sharpness", sharpness, x.scalar_type());
  check_token_mask(op, mask, x);
  if (!totals.has_value()) return;
  check_dtype(op, "totals", *totals, value_dtype(x, x));
  check_rank(op, "totals", *totals, 2, "(H, codes + 3)");
  check_size(op, "totals", *totals, 0, x.sym_size(0), "heads of x");
  check_size(op, "totals", *totals, 1, sign_totals_size(x.size(2)),
             "codes, entropy, tokens, ranks");
  check_same_device(op, "x", x, "totals", *totals);
}

}  // namespace detail

namespace ops {

std::pair<at::Tensor, at::Tensor> sign_entropy(const at::Tensor& x, double sharpness,
                                               const std::optional<at::Tensor>& mask,
                                               const std::optional<at::Tensor>& totals) {
  using Signature = std::tuple<at::Tensor, at::Tensor>(const at::Tensor&, double,
                                                       const std::optional<at::Tensor>&,
                                                       const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::sign_entropy");
  auto [per_sample, batch] = op.call(x, sharpness, mask, totals);
  return {per_sample, batch};
}

at::Tensor sign_entropy_totals(const at::Tensor& x, double sharpness,
                               const std::optional<at::Tensor>& mask) {
  using Signature = at::Tensor(const at::Tensor&, double, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::sign_entropy_totals");
  return op.call(x, sharpness, mask);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> sign_entropy_forward(
    const at::Tensor& x, double sharpness, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& totals, bool wanted) {
  using Signature = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, double, const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
      bool);
  static auto op = detail::op_handle<Signature>("torchvq::sign_entropy_forward");
  return op.call(x, sharpness, mask, totals, wanted);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "sign_entropy(Tensor x, *, float sharpness, Tensor? mask=None, Tensor? totals=None) "
      "-> (Tensor per_sample, Tensor batch)");
  m.def("sign_entropy_totals(Tensor x, *, float sharpness, Tensor? mask=None) -> Tensor");
  m.def(
      "sign_entropy_forward(Tensor x, *, float sharpness, Tensor? mask, Tensor? totals=None, "
      "bool wanted) -> (Tensor, Tensor, Tensor, Tensor)");
}
