#include <torchvq/functional/decode.h>

#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <torchvq/functional/codebook.h>
#include <torchvq/functional/layout.h>
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/ops/residual_decode.h>

#include "detail/checks.h"
#include "detail/readable.h"
#include "functional/affine_scale.h"

namespace torchvq::functional {
namespace {

constexpr int64_t kDecodedFeaturesPerTask = 16384;
constexpr size_t kAffineTensors = 4;

bool has_absent(const at::Tensor& indices) {
  const auto* index = indices.const_data_ptr<int64_t>();
  return std::any_of(index, index + indices.numel(), [](int64_t own) { return own < 0; });
}

/// (H, T, D) as (*, heads * D), with the position axes of `indices`.
at::Tensor by_position(const at::Tensor& codes, const at::Tensor& indices, int64_t axes,
                       int64_t heads, bool separate) {
  const auto positions = indices.sym_sizes().slice(0, static_cast<size_t>(axes));
  std::vector<c10::SymInt> shape(positions.begin(), positions.end());
  shape.push_back(codes.sym_size(-1) * heads);
  return (separate ? codes.transpose(0, 1) : codes).reshape_symint(shape);
}

/// Copies or maps the codes of plain tensors in one pass, straight to (*, heads * D).
template <typename T>
class PlainDecoding {
 public:
  PlainDecoding(const at::Tensor& codebook, at::TensorList affine, int64_t heads)
      : codebook_(codebook.const_data_ptr<T>()),
        size_(codebook.size(1)),
        dim_(codebook.size(2)),
        heads_(heads),
        separate_(codebook.size(0) > 1) {
    if (affine.empty()) return;
    // By torch, whose square roots may differ in the last bit from those of the processor.
    held_ = affine_scale(affine[1], affine[3]);
    mean_ = affine[0].const_data_ptr<T>();
    own_mean_ = affine[2].const_data_ptr<T>();
    scale_ = held_.const_data_ptr<T>();
  }

  void run(const at::Tensor& indices, at::Tensor& codes) const {
    const auto* index = indices.const_data_ptr<int64_t>();
    auto* to = codes.mutable_data_ptr<T>();
    const int64_t grain = 1 + kDecodedFeaturesPerTask / (dim_ + 1);
    at::parallel_for(0, indices.numel(), grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) decode(row, index[row], to + row * dim_);
    });
  }

 private:
  void decode(int64_t row, int64_t index, T* to) const {
    if (index < 0) {
      std::fill_n(to, dim_, T(0));
      return;
    }
    const int64_t head = separate_ ? row % heads_ : 0;
    const T* const code = codebook_ + (head * size_ + index) * dim_;
    if (mean_ == nullptr) {
      std::copy_n(code, dim_, to);
      return;
    }
    const T *mean = mean_ + head * dim_, *own_mean = own_mean_ + head * dim_,
            *scale = scale_ + head * dim_;
    // The order of affine_codes().
    for (int64_t d = 0; d < dim_; ++d) to[d] = (code[d] - own_mean[d]) * scale[d] + mean[d];
  }

  const T* codebook_;
  int64_t size_, dim_, heads_;
  bool separate_;
  const T *mean_ = nullptr, *own_mean_ = nullptr, *scale_ = nullptr;
  at::Tensor held_;
};

/// Whether PlainDecoding does the same as the operators, which report what is wrong.
bool is_plain_decoding(const at::Tensor& codebook, const at::Tensor& indices, int64_t heads,
                       bool separate, at::TensorList affine) {
  const auto dtype = codebook.scalar_type();
  if ((dtype != at::kFloat && dtype != at::kDouble) || indices.scalar_type() != at::kLong) {
    return false;
  }
  if (!detail::is_plain(codebook) || !detail::is_plain(indices)) return false;
  const bool fits =
      heads == 1 || (heads > 1 && indices.dim() > (separate ? 1 : 0) && indices.size(-1) == heads);
  const int64_t size = codebook.size(1), values = codebook.size(0) * codebook.size(2);
  if (!fits || codebook.size(0) != (separate ? heads : 1)) return false;
  const auto* index = indices.const_data_ptr<int64_t>();
  return std::all_of(index, index + indices.numel(),
                     [size](int64_t own) { return own >= -1 && own < size; }) &&
         std::all_of(affine.begin(), affine.end(), [&](const at::Tensor& own) {
           return own.scalar_type() == dtype && own.numel() == values && detail::is_plain(own);
         });
}

at::Tensor decode_plain_indices(const at::Tensor& codebook, const at::Tensor& indices,
                                int64_t heads, at::TensorList affine) {
  auto shape = indices.sizes().vec();
  if (heads > 1) shape.pop_back();
  shape.push_back(codebook.size(2) * heads);
  auto codes = at::empty(shape, codebook.options().requires_grad(false));
  if (codebook.scalar_type() == at::kDouble) {
    PlainDecoding<double>(codebook, affine, heads).run(indices, codes);
  } else {
    PlainDecoding<float>(codebook, affine, heads).run(indices, codes);
  }
  return codes;
}

/// Whether there are fewer tokens than codes, as far as is known.
bool are_few(const at::Tensor& rows, const at::Tensor& codebook) {
  const auto tokens = rows.sym_size(1).maybe_as_int(), size = codebook.sym_size(1).maybe_as_int();
  return tokens && size && *tokens < *size;
}

at::Tensor lookup_mapped(const at::Tensor& codebook, const at::Tensor& rows,
                         at::TensorList affine) {
  const auto map = [&](const at::Tensor& codes) {
    return affine_codes(codes, affine[0], affine[1], affine[2], affine[3]);
  };
  // The gradient of each code is added up before the map.
  if (detail::needs_gradient(codebook) || !are_few(rows, codebook)) {
    return ops::lookup_codes(map(codebook), rows);
  }
  return zero_absent(map(ops::lookup_codes(codebook, rows)), rows);
}

/// The sum of the mapped codes of all levels, for indices (H, T, q).
at::Tensor sum_mapped(at::TensorList codebooks, const at::Tensor& rows, at::TensorList affine) {
  TORCH_CHECK_VALUE(affine.size() == kAffineTensors * codebooks.size(),
                    "decode_residual: expected affine to be 4 tensors for each level, but got ",
                    affine.size(), " for ", codebooks.size(), " levels");
  detail::check_size("decode_residual", "indices", rows, -1,
                     c10::SymInt(static_cast<int64_t>(codebooks.size())), "levels of codebooks");
  at::Tensor total;
  for (size_t n = 0; n < codebooks.size(); ++n) {
    const auto codes = lookup_mapped(codebooks[n], rows.select(-1, static_cast<int64_t>(n)),
                                     affine.slice(kAffineTensors * n, kAffineTensors));
    // As ops::residual_decode(), which begins with 0: no sum is -0.
    total = total.defined() ? total.add(codes) : codes.add(0);
  }
  return total;
}

}  // namespace

at::Tensor zero_absent(const at::Tensor& output, const at::Tensor& indices) {
  detail::check_defined("zero_absent", "output", output);
  detail::check_defined("zero_absent", "indices", indices);
  const int64_t axes = output.dim() - 1;
  TORCH_CHECK_VALUE(axes >= 0 && indices.dim() >= axes &&
                        indices.sym_sizes().slice(0, static_cast<size_t>(axes)) ==
                            output.sym_sizes().slice(0, static_cast<size_t>(axes)),
                    "zero_absent: expected indices to have the positions of output, ",
                    output.sym_sizes(), ", but got shape ", indices.sym_sizes());
  if (indices.scalar_type() == at::kLong && indices.is_contiguous() &&
      detail::is_readable(indices) && detail::is_readable(output) && !has_absent(indices)) {
    return output;
  }
  auto absent = indices.lt(0);
  if (indices.dim() > axes) absent = absent.flatten(axes).all(-1);
  return output.masked_fill(absent.unsqueeze(-1), 0);
}

at::Tensor decode_indices(const at::Tensor& codebook, const at::Tensor& indices, int64_t heads,
                          bool separate, at::TensorList affine) {
  detail::check_rank("decode_indices", "codebook", codebook, 3, "(H, K, D)");
  detail::check_defined("decode_indices", "indices", indices);
  TORCH_CHECK_VALUE(affine.empty() || affine.size() == kAffineTensors,
                    "decode_indices: expected affine to be 4 tensors (mean and variance of the "
                    "data and of the codes) or none, but got ",
                    affine.size());
  if (is_plain_decoding(codebook, indices, heads, separate, affine)) {
    return decode_plain_indices(codebook, indices, heads, affine);
  }
  const auto rows = split_indices(indices, heads, separate);
  const auto codes =
      affine.empty() ? ops::lookup_codes(codebook, rows) : lookup_mapped(codebook, rows, affine);
  return by_position(codes, indices, heads == 1 ? indices.dim() : indices.dim() - 1, heads,
                     separate);
}

at::Tensor decode_residual(const at::Tensor& indices, at::TensorList codebooks, int64_t heads,
                           bool separate, at::TensorList affine) {
  detail::check_defined("decode_residual", "indices", indices);
  const int64_t axes = indices.dim() - (heads == 1 ? 1 : 2);
  TORCH_CHECK_VALUE(axes >= 0 && (heads == 1 || indices.sym_size(-2) == heads),
                    "decode_residual: expected indices to have ", heads,
                    " heads on the axis before the last, but got shape ", indices.sym_sizes());
  const bool apart = separate && heads > 1;
  // Rows (T, q), or (T, heads, q) if heads become the first axis.
  const int64_t kept = apart ? 2 : 1;
  const auto rows = indices.dim() == kept ? indices.unsqueeze(0) : indices.flatten(0, -1 - kept);
  const auto by_head = apart ? rows.transpose(0, 1) : rows.unsqueeze(0);
  const auto total = affine.empty() ? ops::residual_decode(by_head, codebooks)
                                    : sum_mapped(codebooks, by_head, affine);
  return by_position(total, indices, axes, heads, separate);
}

namespace {

// A schema has no default for a list of tensors.
at::Tensor decode_indices_op(const at::Tensor& codebook, const at::Tensor& indices,
                             at::TensorList affine, int64_t heads, bool separate) {
  return decode_indices(codebook, indices, heads, separate, affine);
}

at::Tensor decode_residual_op(const at::Tensor& indices, at::TensorList codebooks,
                              at::TensorList affine, int64_t heads, bool separate) {
  return decode_residual(indices, codebooks, heads, separate, affine);
}

}  // namespace

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  using namespace torchvq::functional;
  m.def("zero_absent(Tensor output, Tensor indices) -> Tensor", TORCH_FN(zero_absent));
  m.def(
      "decode_indices(Tensor codebook, Tensor indices, Tensor[] affine, int heads=1, "
      "bool separate=False) -> Tensor",
      decode_indices_op);
  m.def(
      "decode_residual(Tensor indices, Tensor[] codebooks, Tensor[] affine, int heads=1, "
      "bool separate=False) -> Tensor",
      decode_residual_op);
}
