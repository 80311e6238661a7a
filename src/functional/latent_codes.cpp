#include <torchvq/functional/latent_codes.h>

#include <algorithm>
#include <vector>

#include <ATen/TensorOperators.h>
#include <string_view>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>
#include <torchvq/ops/scalar_decode.h>

#include "detail/checks.h"
#include "detail/precision.h"
#include "detail/readable.h"
#include "detail/scalar_levels.h"

namespace torchvq::functional {
namespace {

std::vector<int64_t> levels_of(const char* op, at::TensorList values) {
  std::vector<int64_t> levels;
  for (const auto& own : values) {
    detail::check_defined(op, "values", own);
    TORCH_CHECK_VALUE(own.dim() == 1, op,
                      ": expected the values of a feature to have 1 dimension, but got shape ",
                      own.sym_sizes());
    levels.push_back(own.size(0));
  }
  return levels;
}

at::Tensor squared_differences(const char* op, const at::Tensor& a, const at::Tensor& b,
                               std::string_view reduce) {
  detail::check_floating(op, "z", a);
  detail::check_floating(op, "zhat", b);
  TORCH_CHECK_VALUE(a.sym_sizes() == b.sym_sizes(), op, ": expected zhat to have the shape of z, ",
                    a.sym_sizes(), ", but got ", b.sym_sizes());
  TORCH_CHECK_VALUE(reduce == "mean" || reduce == "sum" || reduce == "none", op,
                    ": expected reduce to be mean, sum or none, but got ", reduce);
  const auto dtype = detail::value_dtype(a, b);
  const auto squares = (a.to(dtype) - b.to(dtype)).square();
  if (reduce == "none") return squares;
  if (reduce == "sum" || a.sym_numel() == 0) return squares.sum();
  return squares.mean();
}

}  // namespace

ops::LatentQuantizeResult latent_quantize(const at::Tensor& x, at::TensorList values,
                                          double commitment, double quantization,
                                          const std::optional<at::Tensor>& mask) {
  return ops::latent_quantize(x, at::cat(values), levels_of("latent_quantize", values), commitment,
                              quantization, mask);
}

std::vector<at::Tensor> latent_values(at::IntArrayRef levels) {
  detail::check_scalar_levels("latent_values", levels, 2);
  std::vector<at::Tensor> values;
  for (const int64_t count : levels) {
    // Odd numbers of levels reach both ends; even ones omit the upper end, so that 0 is a level.
    const double steps = static_cast<double>(count % 2 == 0 ? count : count - 1);
    values.push_back(at::arange(count, at::kFloat).div(steps).sub(0.5));
  }
  return values;
}

namespace {

/// Whether the values are numbers in memory without a gradient.
bool are_plain(at::TensorList values) {
  const auto dtype = values[0].scalar_type();
  return (dtype == at::kFloat || dtype == at::kDouble) &&
         std::all_of(values.begin(), values.end(), [&](const at::Tensor& own) {
           return own.scalar_type() == dtype && detail::is_plain(own);
         });
}

/// latent_decode() of indices and values in memory, in one pass.
template <typename T>
at::Tensor decode_plain(const at::Tensor& indices, at::TensorList values, at::IntArrayRef levels) {
  const int64_t most = detail::scalar_basis(levels).back() * levels.back();
  const auto dim = static_cast<int64_t>(levels.size());
  auto sizes = indices.sizes().vec();
  sizes.push_back(dim);
  auto codes = at::empty(sizes, values[0].options().requires_grad(false));
  std::vector<const T*> tables;
  for (const auto& own : values) tables.push_back(own.const_data_ptr<T>());
  const auto* from = indices.const_data_ptr<int64_t>();
  auto* to = codes.template mutable_data_ptr<T>();
  for (int64_t row = 0; row < indices.numel(); ++row) {
    int64_t rest = from[row];
    TORCH_CHECK_INDEX(rest >= -1 && rest < most, "latent_decode: expected indices to be in [-1, ",
                      most, "), but got ", rest);
    for (size_t j = 0; j < tables.size(); ++j) {
      *to++ = rest < 0 ? T(0) : tables[j][rest % levels[j]];
      rest = rest < 0 ? rest : rest / levels[j];
    }
  }
  return codes;
}

}  // namespace

at::Tensor latent_decode(const at::Tensor& indices, at::TensorList values) {
  const auto levels = levels_of("latent_decode", values);
  if (indices.scalar_type() == at::kLong && !values.empty() && detail::is_plain(indices) &&
      are_plain(values)) {
    detail::check_scalar_levels("latent_decode", levels, 2);
    return values[0].scalar_type() == at::kDouble ? decode_plain<double>(indices, values, levels)
                                                  : decode_plain<float>(indices, values, levels);
  }
  const auto digits = ops::scalar_level_indices(indices, levels);
  const auto table = at::cat(values);
  std::vector<at::Tensor> columns;
  int64_t start = 0;
  for (size_t j = 0; j < levels.size(); ++j) {
    const auto level = digits.select(-1, static_cast<int64_t>(j));
    columns.push_back(level.add(start));
    start += levels[j];
  }
  const auto places = at::stack(columns, -1).clamp_min(0);
  const auto codes = table.to(detail::value_dtype(table, table))
                         .index_select(0, places.reshape({-1}))
                         .reshape_symint(places.sym_sizes());
  return codes.masked_fill(digits.lt(0), 0);
}

at::Tensor latent_commitment_loss(const at::Tensor& z, const at::Tensor& zhat,
                                  std::string_view reduce) {
  return squared_differences("latent_commitment_loss", z, zhat.detach(), reduce);
}

at::Tensor latent_quantization_loss(const at::Tensor& z, const at::Tensor& zhat,
                                    std::string_view reduce) {
  return squared_differences("latent_quantization_loss", z.detach(), zhat, reduce);
}

}  // namespace torchvq::functional

namespace {

std::tuple<at::Tensor, at::Tensor, at::Tensor> latent_quantize_list(
    const at::Tensor& x, at::TensorList values, double commitment, double quantization,
    const std::optional<at::Tensor>& mask) {
  const auto found =
      torchvq::functional::latent_quantize(x, values, commitment, quantization, mask);
  return {found.codes, found.indices, found.loss};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "latent_quantize_features(Tensor x, Tensor[] values, *, float commitment=0.0, "
      "float quantization=0.0, Tensor? mask=None) -> (Tensor codes, Tensor indices, Tensor loss)",
      TORCH_FN(latent_quantize_list));
  m.def("latent_values(int[] levels) -> Tensor[]", TORCH_FN(torchvq::functional::latent_values));
  m.def("latent_decode(Tensor indices, Tensor[] values) -> Tensor",
        TORCH_FN(torchvq::functional::latent_decode));
  m.def("latent_commitment_loss(Tensor z, Tensor zhat, str reduce='mean') -> Tensor",
        TORCH_FN(torchvq::functional::latent_commitment_loss));
  m.def("latent_quantization_loss(Tensor z, Tensor zhat, str reduce='mean') -> Tensor",
        TORCH_FN(torchvq::functional::latent_quantization_loss));
}
