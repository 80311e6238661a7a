#include "ops/scalar_perturb.h"

#include <tuple>

#include <torch/library.h>

#include <torchvq/ops/scalar_perturb.h>

#include "detail/backward_checks.h"
#include "detail/op_handle.h"
#include "detail/random_tensor.h"
#include "detail/scalar_levels.h"
#include "detail/token_checks.h"

namespace torchvq {

namespace detail {
namespace {

PerturbKind check_kind(const char* op, std::string_view cdf, std::string_view form, double eps) {
  TORCH_CHECK_VALUE(eps > 0 && eps < 0.5, op, ": expected eps to be in (0, 1/2), but got ", eps);
  return {parse_distribution(op, cdf), parse_code_form(op, form)};
}

void check_features(const char* op, const char* name, const at::Tensor& x, at::IntArrayRef levels) {
  check_floating(op, name, x);
  check_scalar_levels(op, levels, 2);
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) == static_cast<int64_t>(levels.size()), op,
                    ": expected ", name, " to have ", levels.size(),
                    " features, one per number of levels, but got shape ", x.sym_sizes());
}

}  // namespace

PerturbKind check_scalar_perturb(const at::Tensor& x, at::IntArrayRef levels,
                                 const std::optional<at::Tensor>& rng, double quantize_rate,
                                 std::string_view cdf, std::string_view form, double eps,
                                 const std::optional<at::Tensor>& mask) {
  constexpr auto op = "scalar_perturb";
  check_features(op, "x", x, levels);
  TORCH_CHECK_VALUE(quantize_rate >= 0 && quantize_rate <= 1, op,
                    ": expected quantize_rate to be in [0, 1], but got ", quantize_rate);
  if (rng) check_rng(op, *rng);
  if (mask) {
    check_dtype(op, "mask", *mask, at::kBool);
    const auto tokens = x.sym_sizes().slice(0, static_cast<size_t>(x.dim() - 1));
    TORCH_CHECK_VALUE(mask->sym_sizes() == tokens, op, ": expected mask to have shape ", tokens,
                      ", that of x without features, but got ", mask->sym_sizes());
    check_same_device(op, "x", x, "mask", *mask);
  }
  return check_kind(op, cdf, form, eps);
}

PerturbKind check_scalar_perturb_backward(const at::Tensor& grad, const at::Tensor& x,
                                          const at::Tensor& indices, std::string_view cdf,
                                          std::string_view form) {
  constexpr auto op = "scalar_perturb_backward";
  check_floating(op, "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 1 && x.sym_size(-1) > 0, op,
                    ": expected x to have features, but got shape ", x.sym_sizes());
  check_same_shape(op, "grad", grad, "x", x);
  check_dtype(op, "indices", indices, at::kLong);
  const auto tokens = x.sym_sizes().slice(0, static_cast<size_t>(x.dim() - 1));
  TORCH_CHECK_VALUE(indices.sym_sizes() == tokens, op,
                    ": expected indices to have the shape of one feature of x, ", tokens,
                    ", but got ", indices.sym_sizes());
  check_same_device(op, "indices", indices, "x", x);
  return {parse_distribution(op, cdf), parse_code_form(op, form)};
}

PerturbKind check_scalar_centroids(const at::Tensor& indices, at::IntArrayRef levels,
                                   std::string_view cdf, std::string_view form, double eps,
                                   at::ScalarType dtype) {
  constexpr auto op = "scalar_centroids";
  check_dtype(op, "indices", indices, at::kLong);
  check_scalar_levels(op, levels, 2);
  TORCH_CHECK_TYPE(dtype == at::kFloat || dtype == at::kDouble, op,
                   ": expected dtype to be float32 or float64, but got ", dtype);
  return check_kind(op, cdf, form, eps);
}

void check_scalar_act_levels(const at::Tensor& act, at::IntArrayRef levels) {
  check_features("scalar_act_levels", "act", act, levels);
}

}  // namespace detail

namespace ops {

PerturbResult scalar_perturb(const at::Tensor& x, at::IntArrayRef levels,
                             const std::optional<at::Tensor>& rng, double quantize_rate,
                             const PerturbOptions& options, const std::optional<at::Tensor>& mask) {
  using Signature = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, at::IntArrayRef, const std::optional<at::Tensor>&, double,
      std::string_view, std::string_view, double, const std::optional<at::Tensor>&);
  static auto op = detail::op_handle<Signature>("torchvq::scalar_perturb");
  auto [codes, level_indices, indices, acceptance] =
      op.call(x, levels, rng, quantize_rate, options.cdf, options.form, options.eps, mask);
  return {codes, level_indices, indices, acceptance};
}

at::Tensor scalar_centroids(const at::Tensor& indices, at::IntArrayRef levels,
                            const PerturbOptions& options, at::ScalarType dtype) {
  using Signature = at::Tensor(const at::Tensor&, at::IntArrayRef, std::string_view,
                               std::string_view, double, std::optional<at::ScalarType>);
  static auto op = detail::op_handle<Signature>("torchvq::scalar_centroids");
  return op.call(indices, levels, options.cdf, options.form, options.eps, dtype);
}

at::Tensor scalar_act_levels(const at::Tensor& act, at::IntArrayRef levels) {
  static auto op = detail::op_handle<at::Tensor(const at::Tensor&, at::IntArrayRef)>(
      "torchvq::scalar_act_levels");
  return op.call(act, levels);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "scalar_perturb(Tensor x, int[] levels, Tensor? rng, *, float quantize_rate=0.0, "
      "str cdf='tanh', str form='unit', float eps=1e-6, Tensor? mask=None) "
      "-> (Tensor codes, Tensor level_indices, Tensor indices, Tensor acceptance)");
  // The gradient of x; private, called only by autograd.
  m.def(
      "scalar_perturb_backward(Tensor grad, Tensor x, Tensor indices, str cdf, str form) -> "
      "Tensor");
  m.def(
      "scalar_centroids(Tensor indices, int[] levels, *, str cdf='tanh', str form='unit', "
      "float eps=1e-6, ScalarType? dtype=None) -> Tensor");
  m.def("scalar_act_levels(Tensor act, int[] levels) -> Tensor");
}
