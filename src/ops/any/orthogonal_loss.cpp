// Any device, CPU included. Codes are selected by a weight of 0 or 1 and never compacted, since the
// size would depend on data. With N the selected unit rows, sum of (n_i.n_j)^2 = |N N^T|^2 = |N^T
// N|^2: the smaller of the two products is used.
#include "ops/orthogonal_loss.h"

#include <algorithm>
#include <limits>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/argsort.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "detail/index_range.h"
#include "detail/ordered_sum.h"
#include "detail/precision.h"
#include "detail/random_tensor.h"
#include "ops/any/code_logits.h"

namespace torchvq {
namespace {

/// Codes that occur, (H, K), bool.
at::Tensor active_codes(const at::Tensor& codebook, const std::optional<at::Tensor>& indices) {
  const int64_t heads = codebook.size(0), size = codebook.size(1);
  if (!indices.has_value()) return at::ones({heads, size}, codebook.options().dtype(at::kBool));
  detail::check_index_range("orthogonal_loss", "indices", *indices, size);
  const auto counts = at::zeros({heads, size}, indices->options());
  return counts
      .scatter_add(1, indices->masked_fill(indices->eq(-1), 0), indices->ge(0).to(at::kLong))
      .gt(0);
}

/// The numbers, (H, M), of the first `max_codes` active codes in a random order of all codes.
at::Tensor random_subset(const at::Tensor& active, int64_t max_codes, const at::Tensor& rng) {
  const auto key = detail::random_key(rng, static_cast<int64_t>(RandomPurpose::kOrthogonalSubset));
  const auto bits = detail::random_bits(key, at::arange(active.size(1), rng.options()));
  const auto keys =
      bits.unsqueeze(0).masked_fill(active.logical_not(), std::numeric_limits<int64_t>::max());
  return at::argsort(keys, /*stable=*/true, /*dim=*/1, /*descending=*/false)
      .narrow(1, 0, max_codes);
}

std::tuple<at::Tensor, at::Tensor> orthogonal_loss_forward(const at::Tensor& codebook,
                                                           const std::optional<at::Tensor>& indices,
                                                           std::optional<int64_t> max_codes,
                                                           const std::optional<at::Tensor>& rng,
                                                           bool want_grad) {
  detail::check_orthogonal_loss(codebook, indices, max_codes, rng);
  const auto dtype = detail::value_dtype(codebook, codebook);
  auto rows = codebook.to(detail::sum_dtype(codebook));
  auto selected = active_codes(codebook, indices);
  at::Tensor subset;
  if (max_codes.has_value() && rng.has_value() && *max_codes < codebook.size(1)) {
    const auto order = random_subset(selected, *max_codes, *rng);
    selected = selected.gather(1, order);
    subset = order.unsqueeze(-1).expand({-1, -1, codebook.size(2)});
    rows = rows.gather(1, subset);
  }
  const auto absent = selected.logical_not().unsqueeze(-1);
  const auto unit = detail::unit_rows_and_norms(rows.masked_fill(absent, 0));
  const auto turned = unit.rows.mT();
  const bool few_codes = rows.size(1) < rows.size(2);
  const auto products = few_codes ? at::bmm(unit.rows, turned) : at::bmm(turned, unit.rows);
  const auto count = selected.sum(1).clamp_min(1).to(rows.scalar_type());
  const auto heads = static_cast<double>(std::max<int64_t>(codebook.size(0), 1));
  const auto excess = products.square().sum({1, 2}) / count.square() - count.reciprocal();
  const auto loss = detail::divided((excess * selected.any(1)).sum(), heads);
  if (!want_grad) return {loss.to(dtype), at::empty({0}, codebook.options().dtype(dtype))};

  const auto pairs = few_codes ? at::bmm(products, unit.rows) : at::bmm(unit.rows, products);
  const auto scale = (count.square() * heads).reciprocal().mul_(4).view({-1, 1, 1});
  const auto grad = detail::unit_rows_backward(pairs * scale, unit).masked_fill_(absent, 0);
  if (!subset.defined()) return {loss.to(dtype), grad.to(dtype)};
  return {loss.to(dtype),
          at::zeros(codebook.sizes(), grad.options()).scatter(1, subset, grad).to(dtype)};
}

at::Tensor orthogonal_loss(const at::Tensor& codebook, const std::optional<at::Tensor>& indices,
                           std::optional<int64_t> max_codes, const std::optional<at::Tensor>& rng) {
  return std::get<0>(orthogonal_loss_forward(codebook, indices, max_codes, rng, false));
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("orthogonal_loss", orthogonal_loss);
  m.impl("orthogonal_loss_forward", orthogonal_loss_forward);
}

}  // namespace torchvq
