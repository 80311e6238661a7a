// The gradient of a lookup: adds rows to the codes they were looked up from.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/index_put.h>

namespace torchvq::detail {

/// Zeros (H, size, D) with row t of `rows` (H, T, D) added to row indices[h, t], in the order of t
/// on any device: scatter_add on a GPU adds in the order of its threads, while index_put sorts
/// first. For a single head, index_add takes a fifth of the time of scatter_add.
inline at::Tensor add_rows(const at::Tensor& rows, const at::Tensor& indices,
                           const c10::SymInt& size) {
  const auto zeros = rows.new_zeros_symint({rows.sym_size(0), size, rows.sym_size(2)});
  if (rows.is_cpu() && rows.sym_size(0) == 1) {
    return at::index_add(zeros[0], 0, indices[0], rows[0]).unsqueeze(0);
  }
  if (rows.is_cpu()) {
    return zeros.scatter_add(1, indices.unsqueeze(-1).expand_as(rows), rows);
  }
  const auto heads = at::arange(rows.sym_size(0), indices.options()).unsqueeze(1);
  return at::index_put(zeros, {heads.expand_as(indices), indices}, rows, /*accumulate=*/true);
}

}  // namespace torchvq::detail
