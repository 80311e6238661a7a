#include "functional/refit_codebooks.h"
#include "functional/read_block.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cholesky_solve.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/zeros.h>

#include <torchvq/ops/residual_decode.h>

#include "functional/on_one_thread.h"

namespace torchvq::functional {
namespace {

constexpr int64_t kSweeps = 3;

// For the matrix, its factor, and the counts, of which only half are stored.
constexpr int64_t kBytesPerUnknownPair = 24;

std::vector<int64_t> first_unknowns(const LevelCodebooks& codebooks) {
  std::vector<int64_t> first{0};
  for (const auto& codebook : codebooks.distinct) first.push_back(first.back() + codebook.size(0));
  return first;
}

at::Tensor normal_matrix(const JointStatistics& statistics, const LevelCodebooks& codebooks) {
  const auto first = first_unknowns(codebooks);
  const auto matrix = at::zeros({first.back(), first.back()}, at::kDouble);
  const auto block = [&](int64_t a, int64_t b) {
    const auto row = static_cast<size_t>(a), column = static_cast<size_t>(b);
    return matrix.narrow(0, first[row], first[row + 1] - first[row])
        .narrow(1, first[column], first[column + 1] - first[column]);
  };
  for (int64_t a = 0; a < statistics.codebooks(); ++a) {
    for (int64_t b = a; b < statistics.codebooks(); ++b) {
      const auto pairs = statistics.pairs(a, b).cpu();
      block(a, b).copy_(pairs);
      if (a != b) block(b, a).copy_(pairs.t());
    }
  }
  return matrix;
}

at::Tensor right_side(const JointStatistics& statistics, const LevelCodebooks& codebooks) {
  std::vector<at::Tensor> sums(codebooks.distinct.size());
  for (int64_t level = 0; level < statistics.levels(); ++level) {
    auto& sum = sums[static_cast<size_t>(codebooks.of_level[static_cast<size_t>(level)])];
    const auto own = statistics.sums(level).cpu();
    sum = sum.defined() ? sum + own : own;
  }
  return at::cat(sums);
}

at::Tensor solved(const at::Tensor& matrix, const at::Tensor& right) {
  at::Tensor solution;
  on_one_thread([&] {
    const auto [factor, failed] = at::linalg_cholesky_ex(matrix);
    if (failed.item<int>() == 0) solution = at::cholesky_solve(right, factor);
  });
  return solution;
}

std::vector<at::Tensor> parts_of(const at::Tensor& all, const LevelCodebooks& codebooks) {
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const auto& codebook : codebooks.distinct) {
    parts.push_back(all.narrow(0, first, codebook.size(0)).to(codebook.device()).clone());
    first += codebook.size(0);
  }
  return parts;
}

// The residual of x after the codes of all levels except one.
at::Tensor residual_without(const at::Tensor& x, const at::Tensor& codes, int64_t level,
                            const std::vector<at::Tensor>& levels) {
  auto others = codes.to(at::kLong);
  others.select(1, level).fill_(-1);
  return x - ops::residual_decode(others.unsqueeze(0), with_one_head(levels))[0];
}

double bound_of(const std::vector<at::Tensor>& levels, double largest) {
  for (const auto& level : levels) largest += level.abs().max().item<double>();
  return largest;
}

}  // namespace

std::vector<at::Tensor> with_one_head(const std::vector<at::Tensor>& codebooks) {
  std::vector<at::Tensor> heads;
  heads.reserve(codebooks.size());
  for (const auto& codebook : codebooks) heads.push_back(codebook.unsqueeze(0));
  return heads;
}

std::vector<at::Tensor> LevelCodebooks::levels() const {
  std::vector<at::Tensor> all;
  for (const auto owner : of_level) all.push_back(distinct[static_cast<size_t>(owner)]);
  return all;
}

int64_t LevelCodebooks::unknowns() const {
  int64_t count = 0;
  for (const auto& codebook : distinct) count += codebook.size(0);
  return count;
}

int64_t joint_refit_bytes(const LevelCodebooks& codebooks) {
  return kBytesPerUnknownPair * codebooks.unknowns() * codebooks.unknowns();
}

std::vector<at::Tensor> refit_jointly(const JointStatistics& statistics,
                                      const LevelCodebooks& codebooks, double ridge,
                                      const distributed::Group& group) {
  const auto present = at::cat(codebooks.distinct);
  auto next = present.cpu();
  if (group.rank() == 0) {
    const auto matrix = normal_matrix(statistics, codebooks);
    matrix.diagonal().add_(ridge);
    const auto right = right_side(statistics, codebooks) + next.to(at::kDouble) * ridge;
    const auto found = solved(matrix, right);
    // If `ridge` is tiny compared to the counts, rounding may make the system
    // indefinite; the level is then kept.
    if (found.defined()) next = found.to(at::kFloat);
  }
  next = next.contiguous().to(present.device());
  group.broadcast_(next, "the refitted codebooks");
  return parts_of(next, codebooks);
}

std::vector<at::Tensor> refit_by_level(const VectorBlocks& vectors,
                                       const std::vector<at::Tensor>& codes,
                                       const LevelCodebooks& codebooks, double largest,
                                       double ridge, const distributed::Group& group) {
  auto levels = codebooks.distinct;
  const auto count = static_cast<int64_t>(levels.size());
  for (int64_t turn = 0; turn < kSweeps * count; ++turn) {
    const auto q = turn % count;
    auto& level = levels[static_cast<size_t>(q)];
    const auto exponent = exponent_for(bound_of(levels, largest));
    const auto integers = at::dtype(at::kLong).device(level.device());
    const auto counts = at::zeros({level.size(0)}, integers);
    const auto sums = at::zeros({1, 1, level.size(0), level.size(1)}, integers);
    for (size_t block = 0; block < codes.size(); ++block) {
      const auto first = static_cast<int64_t>(block) * vectors.block_rows;
      const auto x = read_block(vectors, first);
      const auto own = codes[block].select(1, q).to(at::kLong);
      counts.add_(own.bincount({}, level.size(0)));
      const auto left = residual_without(x, codes[block], q, levels);
      sums.add_(sums_of_codes(left, own, level.size(0), exponent));
    }
    group.sum_(counts, "counts of the codes");
    group.sum_(sums, "sums of the codes");
    const auto all = decoded_sums(sums, exponent) + level.to(at::kDouble) * ridge;
    level = (all / (counts.to(at::kDouble) + ridge).unsqueeze(1)).to(at::kFloat);
  }
  return levels;
}

}  // namespace torchvq::functional
