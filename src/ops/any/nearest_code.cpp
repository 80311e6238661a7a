// Any device: plain ATen, the reference for the CPU kernel.
//
// A matrix product scores all codes; a bound on its rounding error determines which codes may be
// the nearest. Rows are processed in chunks, so that memory is bounded for any N and K; rows that
// the bound leaves open are collected over all chunks and decided together by the scores that the
// contract defines (docs/design/search.md, docs/design/any-device.md).
#include "ops/nearest_code.h"

#include <algorithm>
#include <limits>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "detail/ordered_sum.h"
#include "detail/product_dtype.h"
#include "detail/root.h"
#include "ops/any/nearest_code_by.h"

namespace torchvq {
namespace {

using detail::NearestCodeProblem;
using detail::sum_in_order;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Number of elements of the largest temporary: long launches suit a GPU, while the CPU has caches.
int64_t numbers_at_once(const at::Tensor& x) {
  return x.is_cpu() ? int64_t{1} << 22 : int64_t{1} << 26;
}

int64_t rows_at_once(const at::Tensor& x, int64_t numbers_of_a_row) {
  return std::max<int64_t>(1, numbers_at_once(x) / std::max<int64_t>(1, numbers_of_a_row));
}

/// Calls body(first row, number of rows) for each chunk.
template <typename Body>
void over_chunks(int64_t rows, int64_t step, const Body& body) {
  for (int64_t begin = 0; begin < rows; begin += step) body(begin, std::min(step, rows - begin));
}

/// Rows divided by their float64 norm, summed in index order; zero rows stay zero.
at::Tensor unit_rows(const at::Tensor& rows) {
  const auto wide = rows.to(at::kDouble);
  const auto norm = detail::rounded_root(sum_in_order(wide * wide)).unsqueeze(-1);
  return (wide / norm).masked_fill_(norm.eq(0), 0).to(rows.scalar_type());
}

at::Tensor finite_rows(const at::Tensor& rows) { return rows.isfinite().all(-1); }

/// Rows as read by the contract's scores: rows with a NaN or infinity are zero, and for
/// cosine all are normalized.
at::Tensor contract_rows(const at::Tensor& x, bool cosine) {
  const auto rows = x.masked_fill(finite_rows(x).logical_not_().unsqueeze(-1), 0);
  return cosine ? unit_rows(rows) : rows;
}

/// One head's codebook, in the form that scanning and deciding need.
struct Codes {
  Codes(const NearestCodeProblem& problem, int64_t head)
      : product(detail::product_dtype(problem.dtype, problem.x.device())), cosine(problem.cosine) {
    const auto given = problem.head_codebook(head);
    bias = problem.head_bias(head);
    excluded = finite_rows(given).logical_not_();
    if (bias.defined()) {
      excluded = excluded | bias.isfinite().logical_not();
      bias = bias.to(at::kDouble).masked_fill(excluded, 0) * (problem.cosine ? 1.0 : 0.5);
    }
    values = given.masked_fill(excluded.unsqueeze(-1), 0);
    if (cosine) values = unit_rows(values);
    if (product) prepare_scan(*product);
  }

  void prepare_scan(at::ScalarType dtype) {
    const auto wide = values.to(dtype);
    // Larger norms could overflow in a product; such codes skip the scan and are always candidates.
    huge = wide.to(at::kDouble).square().sum(-1).gt(dtype == at::kFloat ? 0x1p120 : 0x1p1000);
    if (bias.defined()) huge = huge | bias.abs().gt(dtype == at::kFloat ? 0x1p120 : 0x1p1000);
    huge.logical_and_(excluded.logical_not());
    const auto skip = huge | excluded;
    const auto kept = wide.masked_fill(skip.unsqueeze(-1), 0);
    // Any centre is correct; the mean keeps the bound small.
    center = kept.sum(0) / skip.logical_not().sum().clamp_min(1);
    if (cosine) center.zero_();
    centered = (kept - center).masked_fill_(skip.unsqueeze(-1), 0);
    auto half = cosine ? at::zeros({values.size(0)}, center.options())
                       : centered.square().sum(-1).mul_(0.5);
    auto offset = half.to(at::kDouble).abs();
    if (bias.defined()) {
      half = half + bias.masked_fill(skip, 0).to(dtype);
      offset = offset + bias.masked_fill(skip, 0).abs();
    }
    half_norms = half.masked_fill_(skip, kInfinity);
    bound_error(dtype, offset.max());
  }

  /// Bound on the error of a row's scan scores against the contract's, for any order of additions:
  /// slope * norm of the centred row + floor.
  void bound_error(at::ScalarType dtype, const at::Tensor& offset) {
    const bool single = dtype == at::kFloat;
    const double rounded = static_cast<double>(values.size(1) + 8);
    const double unit = (single ? 0x1p-24 : 0x1p-53) * rounded, wide_unit = 0x1p-53 * rounded,
                 tiny = (single ? 0x1p-120 : 0x1p-1000) * rounded;
    const auto radius = centered.to(at::kDouble).square().sum(-1).max().sqrt();
    const auto shift = center.to(at::kDouble).square().sum().sqrt();
    const auto reach = radius + shift;
    // Rounding of the scan, plus rounding of the contract's float64 sum, which uses uncentred
    // values. Both of the scores that are compared have this error; 2.1 is twice the error, with
    // room for the rounding of the bound itself.
    slope = (radius * unit + reach * wide_unit + tiny) * 2.1;
    floor = (offset * unit + (shift * reach + reach.square() + offset) * wide_unit +
             (reach + 1) * tiny) *
            2.1;
  }

  std::optional<at::ScalarType> product;  ///< of the scan; none where no product can be trusted
  bool cosine = false;
  at::Tensor values;        ///< (K, D), as contract_rows(), excluded rows zero
  at::Tensor bias;          ///< (K,) float64, as added to the score, or undefined
  at::Tensor excluded;      ///< (K,) bool
  at::Tensor huge;          ///< (K,) bool
  at::Tensor center;        ///< (D,)
  at::Tensor centered;      ///< (K, D)
  at::Tensor half_norms;    ///< (K,)
  at::Tensor slope, floor;  ///< float64 scalars
};

/// Scores of a chunk of rows by a matrix product.
struct Scan {
  /// `rows` are those of contract_rows(); `product` is that of `codes`.
  Scan(const at::Tensor& rows, const Codes& codes, at::ScalarType product, int64_t k) {
    const auto x = rows.to(product) - codes.center;
    scores = at::addmm(codes.half_norms, x, codes.centered.t(), /*beta=*/1, /*alpha=*/-1);
    const int64_t taken = std::min(k + 1, scores.size(1));
    std::tie(best, places) = scores.topk(taken, -1, /*largest=*/false);
    const auto norm = at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, false, at::kDouble);
    const double most = product == at::kFloat ? 0x1p60 : 0x1p500;
    limit = best.select(-1, k - 1).to(at::kDouble) + (norm * codes.slope + codes.floor);
    // Products of such large rows may overflow, or already have: every code may be the nearest.
    limit.masked_fill_(norm.le(most).logical_not_(), kInfinity);
  }

  /// Rows whose nearest code is certain, for k = 1.
  at::Tensor certain(const Codes& codes) const {
    if (best.size(1) == 1) return at::ones({best.size(0)}, codes.huge.options());
    return best.select(-1, 1)
        .to(at::kDouble)
        .gt(limit)
        .logical_and_(codes.huge.any().logical_not());
  }

  /// Codes that may be among the k nearest, (rows, K) bool; a NaN score excludes nothing.
  at::Tensor candidates(const Codes& codes) const {
    return scores.to(at::kDouble).gt(limit.unsqueeze(-1)).logical_not_().logical_or_(codes.huge);
  }

  at::Tensor scores;        ///< (rows, K)
  at::Tensor best, places;  ///< (rows, k + 1 or K), best first
  at::Tensor limit;  ///< (rows,) float64; a code with a score above is not among the k nearest
};

/// The contract's scores of pairs (row, code): float64, over d in index order, nothing contracted.
at::Tensor pair_scores(const at::Tensor& rows, const Codes& codes, const at::Tensor& row,
                       const at::Tensor& code) {
  auto score = at::empty({row.size(0)}, rows.options().dtype(at::kDouble));
  over_chunks(row.size(0), rows_at_once(rows, 2 * rows.size(1)), [&](int64_t begin, int64_t count) {
    const auto x = rows.index_select(0, row.narrow(0, begin, count)).to(at::kDouble);
    const auto c = codes.values.index_select(0, code.narrow(0, begin, count)).to(at::kDouble);
    const auto product = x * c;
    const auto terms = codes.cosine ? product.neg() : (c * c).mul_(0.5).sub_(product);
    score.narrow(0, begin, count).copy_(sum_in_order(terms));
  });
  if (codes.bias.defined()) score.add_(codes.bias.index_select(0, code));
  return score.masked_fill_(codes.excluded.index_select(0, code) | score.isnan(), kInfinity);
}

/// Decides rows by the contract's scores of their candidates: the k best codes of
/// each row, ties by index.
at::Tensor decide(const at::Tensor& rows, const Codes& codes, const at::Tensor& candidate,
                  int64_t k) {
  const auto pairs = candidate.nonzero();
  const auto row = pairs.select(1, 0).contiguous(), code = pairs.select(1, 1).contiguous();
  const auto score = pair_scores(rows, codes, row, code);
  const std::optional<bool> stable = true;
  // Pairs come sorted by row and code; two stable sorts give (row, score, code).
  const auto by_score = std::get<1>(score.sort(stable, 0, /*descending=*/false));
  const auto by_row =
      std::get<1>(row.index_select(0, by_score).sort(stable, 0, /*descending=*/false));
  const auto order = by_score.index_select(0, by_row);
  const auto count = candidate.sum(-1);
  const auto first = (count.cumsum(0) - count).unsqueeze(-1) + at::arange(k, count.options());
  return code.index_select(0, order.index_select(0, first.flatten())).view({rows.size(0), k});
}

/// Indices (N, 1) by the scan alone, and the numbers of the rows that it leaves open. Reading their
/// count is the only time that a search waits for the device.
std::pair<at::Tensor, at::Tensor> scan_rows(const at::Tensor& x, const Codes& codes,
                                            at::ScalarType product) {
  const int64_t tokens = x.size(0);
  auto index = at::empty({tokens, 1}, x.options().dtype(at::kLong));
  auto certain = at::empty({tokens}, x.options().dtype(at::kBool));
  over_chunks(tokens, rows_at_once(x, std::max(codes.values.size(0), x.size(1))),
              [&](int64_t begin, int64_t count) {
                const auto rows = contract_rows(x.narrow(0, begin, count), codes.cosine);
                const Scan scan(rows, codes, product, 1);
                index.narrow(0, begin, count).copy_(scan.places.narrow(1, 0, 1));
                certain.narrow(0, begin, count).copy_(scan.certain(codes));
              });
  return {index, certain.logical_not_().nonzero().squeeze(-1)};
}

/// The same with the device's own way to decide.
at::Tensor decide_by(const detail::DecideRows& decide, const at::Tensor& rows, const Codes& codes,
                     int64_t k) {
  detail::OpenRows open = {rows, codes.values, codes.bias, codes.excluded, {}, {}, codes.cosine, k};
  if (codes.product) {
    const Scan scan(rows, codes, *codes.product, k);
    open.scores = scan.scores.to(at::kDouble).masked_fill(codes.huge, -kInfinity);
    open.limit = scan.limit;
  } else {
    open.scores =
        at::zeros({rows.size(0), codes.values.size(0)}, rows.options().dtype(at::kDouble));
    open.limit = at::full({rows.size(0)}, kInfinity, open.scores.options());
  }
  return decide(open);
}

/// The k nearest codes (N, k) of rows (N, D); the result is meaningless for
/// rows that are not finite.
at::Tensor search_rows(const at::Tensor& x, const Codes& codes, int64_t k,
                       const detail::DecideRows& decide_rows) {
  at::Tensor index, open;
  if (k == 1 && codes.product) {
    std::tie(index, open) = scan_rows(x, codes, *codes.product);
  } else {
    index = at::empty({x.size(0), k}, x.options().dtype(at::kLong));
    open = at::arange(x.size(0), index.options());
  }
  // Two temporaries: the float64 scores of a chunk, and its pairs.
  const int64_t size = codes.values.size(0);
  over_chunks(open.size(0), rows_at_once(x, 2 * std::max(size, x.size(1))),
              [&](int64_t begin, int64_t count) {
                const auto part = open.narrow(0, begin, count);
                const auto rows = contract_rows(x.index_select(0, part), codes.cosine);
                if (decide_rows) {
                  index.index_copy_(0, part, decide_by(decide_rows, rows, codes, k));
                  return;
                }
                const auto candidate = codes.product
                                           ? Scan(rows, codes, *codes.product, k).candidates(codes)
                                           : at::ones({count, size}, codes.excluded.options());
                index.index_copy_(0, part, decide(rows, codes, candidate, k));
              });
  return index;
}

/// Distances (N, k) of rows (N, D) to codes (N, k, D), float64, added in index order.
at::Tensor distances_of(const at::Tensor& x, const at::Tensor& codes, bool cosine) {
  const auto wide_x = x.to(at::kDouble).unsqueeze(1), wide_codes = codes.to(at::kDouble);
  // Products instead of square(), which is a power: devices differ in how they compute powers.
  const auto dot = [](const at::Tensor& a, const at::Tensor& b) { return sum_in_order(a * b); };
  if (!cosine) {
    const auto difference = wide_x - wide_codes;
    return dot(difference, difference);
  }
  const auto norms =
      detail::rounded_root(dot(wide_x, wide_x)) * detail::rounded_root(dot(wide_codes, wide_codes));
  const auto similarity = dot(wide_x, wide_codes) / norms;
  return similarity.masked_fill_(norms.eq(0), 0).neg_().add_(1);
}

/// Destinations of the results of one head; undefined if not wanted.
struct HeadOutput {
  at::Tensor indices, codes, distances;
};

void complete(const NearestCodeProblem& problem, int64_t head, const HeadOutput& out) {
  const auto x = problem.x.select(0, head);
  const auto absent = finite_rows(x).logical_not_().unsqueeze(-1);
  out.indices.copy_(at::where(absent, at::arange(problem.k, out.indices.options()), out.indices));
  if (!out.codes.defined() && !out.distances.defined()) return;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto step = rows_at_once(x, 2 * problem.dim * problem.k);
  over_chunks(problem.tokens, step, [&](int64_t begin, int64_t count) {
    const auto part = [&](const at::Tensor& rows) { return rows.narrow(0, begin, count); };
    const auto flat = part(out.indices).reshape({-1});
    const auto codes =
        problem.head_codebook(head).index_select(0, flat).view({count, problem.k, problem.dim});
    if (out.distances.defined()) {
      auto distances = distances_of(part(x), codes, problem.cosine);
      if (problem.bias.defined()) {
        distances.add_(problem.head_bias(head).index_select(0, flat).view({count, problem.k}));
      }
      part(out.distances).copy_(distances.masked_fill_(part(absent), nan));
    }
    if (out.codes.defined()) {
      part(out.codes).copy_(codes.masked_fill(part(absent).unsqueeze(-1), nan));
    }
  });
}

detail::NearestCodeTensors search_heads(const NearestCodeProblem& problem, bool return_codes,
                                        bool return_distances, const detail::DecideRows& decide) {
  const auto options = problem.x.options();
  const int64_t heads = problem.heads, tokens = problem.tokens, k = problem.k, dim = problem.dim;
  auto indices = at::empty({heads, tokens, k}, options.dtype(at::kLong));
  auto codes = at::empty(return_codes ? at::IntArrayRef{heads, tokens, k, dim} : at::IntArrayRef{0},
                         options);
  auto distances =
      at::empty(return_distances ? at::IntArrayRef{heads, tokens, k} : at::IntArrayRef{0}, options);
  for (int64_t head = 0; head < heads && tokens > 0; ++head) {
    const HeadOutput out{indices.select(0, head),
                         return_codes ? codes.select(0, head) : at::Tensor(),
                         return_distances ? distances.select(0, head) : at::Tensor()};
    out.indices.copy_(search_rows(problem.x.select(0, head), Codes(problem, head), k, decide));
    complete(problem, head, out);
  }
  return {indices, codes, distances};
}

detail::NearestCodeTensors nearest_code(const at::Tensor& x, const at::Tensor& codebook,
                                        std::string_view metric,
                                        const std::optional<at::Tensor>& bias,
                                        std::optional<int64_t> topk, bool return_codes,
                                        bool return_distances,
                                        const std::optional<at::Tensor>& mask) {
  const NearestCodeProblem problem(x, codebook, metric, bias, topk, mask);
  auto found = detail::nearest_code_by(x, problem, topk, return_codes, return_distances, nullptr);
  detail::fill_padding_of(found, mask, topk);
  return found;
}

}  // namespace

detail::NearestCodeTensors detail::nearest_code_by(const at::Tensor& x,
                                                   const NearestCodeProblem& problem,
                                                   std::optional<int64_t> topk, bool return_codes,
                                                   bool return_distances,
                                                   const DecideRows& decide) {
  const auto [indices, codes, distances] =
      search_heads(problem, return_codes, return_distances, decide);
  const auto shape = nearest_code_sizes(x, topk);
  auto codes_shape = shape;
  codes_shape.push_back(problem.dim);
  return {indices.view(shape), return_codes ? codes.view(codes_shape) : codes,
          return_distances ? distances.view(shape) : distances};
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("nearest_code", nearest_code); }

}  // namespace torchvq
