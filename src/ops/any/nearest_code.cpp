// Any device: plain ATen, the reference for the CPU kernel.
//
// A matrix product scores all codes; a bound on its rounding tells which codes may be the nearest;
// where more than one may, the scores that the contract defines decide (docs/design/search.md).
// Rows are taken in chunks, so that memory stays bounded whatever N and K.
#include "ops/nearest_code.h"

#include <algorithm>
#include <cmath>

#include <ATen/Context.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

namespace torchvq {
namespace {

using detail::NearestCodeProblem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kSearchChunkScores = int64_t{1} << 22;  // scores alive at a time

/// The matrix product may round its inputs to TensorFloat32 or bfloat16 when the user allows that;
/// the bound below assumes float32 arithmetic, so it then runs in float64.
at::ScalarType scan_dtype(at::ScalarType dtype) {
  const auto& context = at::globalContext();
  const auto reduced = [&](at::Float32Backend backend) {
    const auto precision = context.float32Precision(backend, at::Float32Op::MATMUL);
    return precision == at::Float32Precision::TF32 || precision == at::Float32Precision::BF16;
  };
  return reduced(at::Float32Backend::CUDA) || reduced(at::Float32Backend::MKLDNN) ? at::kDouble
                                                                                  : dtype;
}

/// Rows divided by their float64 norm, summed in index order; zero rows stay zero.
at::Tensor unit_rows(const at::Tensor& rows) {
  auto squares = at::zeros({rows.size(0)}, rows.options().dtype(at::kDouble));
  for (int64_t d = 0; d < rows.size(1); ++d) {
    const auto column = rows.select(1, d).to(at::kDouble);
    squares.add_(column * column);
  }
  const auto norm = squares.sqrt_().unsqueeze(-1);
  return (rows.to(at::kDouble) / norm).masked_fill_(norm.eq(0), 0).to(rows.scalar_type());
}

at::Tensor finite_rows(const at::Tensor& rows) { return rows.isfinite().all(-1); }

/// One head's codebook, in the form that scanning and deciding need.
struct Codes {
  Codes(const NearestCodeProblem& problem, int64_t head) {
    const auto given = problem.head_codebook(head);
    bias = problem.head_bias(head);
    excluded = finite_rows(given).logical_not_();
    if (bias.defined()) {
      excluded = excluded | bias.isfinite().logical_not();
      bias = bias.to(at::kDouble).masked_fill_(excluded, 0) * (problem.cosine ? 1.0 : 0.5);
    }
    values = given.masked_fill(excluded.unsqueeze(-1), 0);
    if (problem.cosine) values = unit_rows(values);
    cosine = problem.cosine;
    columns = values.t().contiguous();
    prepare_scan(scan_dtype(problem.dtype));
  }

  void prepare_scan(at::ScalarType dtype) {
    const auto wide = values.to(dtype);
    // Norms above this bound could overflow in a product; such codes skip the scan and are always
    // candidates.
    huge = wide.to(at::kDouble).square().sum(-1).gt(dtype == at::kFloat ? 0x1p120 : 0x1p1000);
    if (bias.defined()) huge = huge | bias.abs().gt(dtype == at::kFloat ? 0x1p120 : 0x1p1000);
    huge.logical_and_(excluded.logical_not());
    const auto skip = huge | excluded;
    const auto kept = wide.masked_fill(skip.unsqueeze(-1), 0);
    // Any centre is correct; the mean makes the bound small.
    center = kept.sum(0) / skip.logical_not().sum().clamp_min(1);
    if (cosine) center.zero_();
    centered = (kept - center).masked_fill_(skip.unsqueeze(-1), 0);
    auto half = cosine ? at::zeros({values.size(0)}, center.options())
                       : centered.square().sum(-1).mul_(0.5);
    const auto squares = centered.to(at::kDouble).square().sum(-1);
    radius = squares.max().sqrt();
    offset = half.to(at::kDouble).abs();
    if (bias.defined()) {
      half = half + bias.masked_fill(skip, 0).to(dtype);
      offset = offset + bias.masked_fill(skip, 0).abs();
    }
    offset = offset.max();
    half_norms = half.masked_fill_(skip, kInfinity);
  }

  at::Tensor values;    ///< (K, D), what the contract's score reads: unit rows for cosine, excluded
                        ///< rows zero
  at::Tensor columns;   ///< (D, K), the same
  at::Tensor bias;      ///< (K,) float64, as it is added to the score, or undefined
  at::Tensor excluded;  ///< (K,) bool
  at::Tensor huge;      ///< (K,) bool
  at::Tensor center;    ///< (D,)
  at::Tensor centered;  ///< (K, D)
  at::Tensor half_norms;  ///< (K,)
  at::Tensor radius;      ///< largest norm of centered, float64
  at::Tensor offset;      ///< largest |half norm| + |bias|, float64
  bool cosine = false;
};

/// The contract's scores of pairs (row, code): float64, over d in index order, nothing contracted.
at::Tensor pair_scores(const at::Tensor& columns, const Codes& codes, const at::Tensor& row,
                       const at::Tensor& code) {
  auto score = at::zeros({row.size(0)}, columns.options().dtype(at::kDouble));
  for (int64_t d = 0; d < columns.size(0); ++d) {
    const auto x = columns.select(0, d).index_select(0, row).to(at::kDouble);
    const auto c = codes.columns.select(0, d).index_select(0, code).to(at::kDouble);
    score.add_(codes.cosine ? (x * c).neg_() : (c * c).mul_(0.5).sub_(x * c));
  }
  if (codes.bias.defined()) score.add_(codes.bias.index_select(0, code));
  return score.masked_fill_(codes.excluded.index_select(0, code) | score.isnan(), kInfinity);
}

/// Codes that may be among the k nearest: (rows, K) bool. `rows` are finite and in the contract's
/// form.
at::Tensor candidates(const at::Tensor& rows, const Codes& codes, int64_t k) {
  const auto dtype = codes.center.scalar_type();
  const auto x = rows.to(dtype) - codes.center;
  const auto norm = x.to(at::kDouble).square().sum(-1).sqrt_();
  const auto outside = norm.gt(dtype == at::kFloat ? 0x1p60 : 0x1p500);
  const auto scores =
      codes.half_norms - at::matmul(x.masked_fill(outside.unsqueeze(-1), 0), codes.centered.t());
  const auto kth = std::get<0>(scores.topk(k, -1, /*largest=*/false)).select(-1, k - 1);

  const double dim = static_cast<double>(rows.size(1));
  const double unit = dtype == at::kFloat ? 0x1p-24 : 0x1p-53;
  const double tiny = dtype == at::kFloat ? 0x1p-120 : 0x1p-1000;
  const auto offset_norm = codes.center.to(at::kDouble).square().sum().sqrt();
  // Rounding of the scan, then rounding of the contract's own float64 sum, which sees the uncentred
  // values.
  auto error = (norm * codes.radius + codes.offset) * (unit * (dim + 8));
  error = error + ((norm + offset_norm) * (codes.radius + offset_norm) +
                   (codes.radius + offset_norm).square() + codes.offset) *
                      (0x1p-53 * (dim + 8));
  error = error + (norm + codes.radius + offset_norm + 1) * (tiny * (dim + 8));
  const auto limit = (kth.to(at::kDouble) + error * 2.1).masked_fill_(outside, kInfinity);
  return scores.to(at::kDouble).le(limit.unsqueeze(-1)) | codes.huge;
}

/// Decides rows by the contract's scores among their candidates: the k best codes of each row, ties
/// by index.
at::Tensor decide(const at::Tensor& rows, const Codes& codes, const at::Tensor& candidate,
                  int64_t k) {
  const auto pairs = candidate.nonzero();
  const auto row = pairs.select(1, 0), code = pairs.select(1, 1);
  const auto score = pair_scores(rows.t().contiguous(), codes, row, code);
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

/// Indices (rows, k) of finite rows.
at::Tensor search_rows(const at::Tensor& rows, const Codes& codes, int64_t k) {
  const auto candidate = candidates(rows, codes, k);
  if (k > 1) return decide(rows, codes, candidate, k);
  auto index = candidate.to(at::kByte).argmax(-1, /*keepdim=*/true);
  const auto open = candidate.sum(-1).gt(1).nonzero().squeeze(-1);
  if (open.size(0) > 0) {
    index.index_copy_(
        0, open, decide(rows.index_select(0, open), codes, candidate.index_select(0, open), k));
  }
  return index;
}

struct ChunkOutput {
  at::Tensor indices, codes, distances;
};

at::Tensor distances_of(const at::Tensor& x, const at::Tensor& codes, bool cosine) {
  const auto wide_x = x.to(at::kDouble).unsqueeze(1), wide_codes = codes.to(at::kDouble);
  if (!cosine) return (wide_x - wide_codes).square_().sum(-1);
  const auto norms = (wide_x.square().sum(-1) * wide_codes.square().sum(-1)).sqrt_();
  const auto similarity = (wide_x * wide_codes).sum(-1) / norms;
  return similarity.masked_fill_(norms.eq(0), 0).neg_().add_(1);
}

ChunkOutput search_chunk(const NearestCodeProblem& problem, const Codes& codes, int64_t head,
                         const at::Tensor& x, bool return_codes, bool return_distances) {
  const auto absent = finite_rows(x).logical_not_().unsqueeze(-1);
  auto rows = x.masked_fill(absent, 0);
  if (problem.cosine) rows = unit_rows(rows);
  ChunkOutput out;
  out.indices = search_rows(rows, codes, problem.k);
  out.indices = at::where(absent, at::arange(problem.k, out.indices.options()), out.indices);
  if (!return_codes && !return_distances) return out;

  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto flat = out.indices.flatten();
  out.codes =
      problem.head_codebook(head).index_select(0, flat).view({x.size(0), problem.k, problem.dim});
  if (return_distances) {
    out.distances = distances_of(x, out.codes, problem.cosine);
    if (problem.bias.defined()) {
      out.distances.add_(
          problem.head_bias(head).index_select(0, flat).view({x.size(0), problem.k}));
    }
    out.distances = out.distances.masked_fill_(absent, nan).to(problem.dtype);
  }
  out.codes.masked_fill_(absent.unsqueeze(-1), nan);
  return out;
}

detail::NearestCodeTensors nearest_code(const at::Tensor& x, const at::Tensor& codebook,
                                        std::string_view metric,
                                        const std::optional<at::Tensor>& bias,
                                        std::optional<int64_t> topk, bool return_codes,
                                        bool return_distances) {
  const NearestCodeProblem problem(x, codebook, metric, bias, topk);
  const auto options = problem.x.options();
  const int64_t heads = problem.heads, tokens = problem.tokens, k = problem.k, dim = problem.dim;
  auto indices = at::empty({heads, tokens, k}, options.dtype(at::kLong));
  auto codes = at::empty(return_codes ? at::IntArrayRef{heads, tokens, k, dim} : at::IntArrayRef{0},
                         options);
  auto distances =
      at::empty(return_distances ? at::IntArrayRef{heads, tokens, k} : at::IntArrayRef{0}, options);

  const int64_t step = std::max<int64_t>(1, kSearchChunkScores / std::max(problem.size, dim * k));
  for (int64_t head = 0; head < heads && tokens > 0; ++head) {
    const Codes prepared(problem, head);
    for (int64_t begin = 0; begin < tokens; begin += step) {
      const int64_t count = std::min(step, tokens - begin);
      const auto part = problem.x.select(0, head).narrow(0, begin, count);
      const auto out = search_chunk(problem, prepared, head, part, return_codes, return_distances);
      indices.select(0, head).narrow(0, begin, count).copy_(out.indices);
      if (return_codes) codes.select(0, head).narrow(0, begin, count).copy_(out.codes);
      if (return_distances) distances.select(0, head).narrow(0, begin, count).copy_(out.distances);
    }
  }
  const auto shape = C10_AS_INTARRAYREF_SLOW(detail::nearest_code_shape(x, topk));
  auto codes_shape = shape.vec();
  codes_shape.push_back(dim);
  return {indices.view(shape), return_codes ? codes.view(codes_shape) : codes,
          return_distances ? distances.view(shape) : distances};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) { m.impl("nearest_code", nearest_code); }

}  // namespace torchvq
