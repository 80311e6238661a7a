#include <torchvq/functional/refine_codebooks.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scalar_tensor.h>

#include <torchvq/functional/reconstruction_error.h>
#include <torchvq/ops/residual_beam_search.h>
#include <torchvq/ops/residual_decode.h>
#include <torchvq/ops/residual_encode.h>

#include "distributed/agreement.h"
#include "distributed/group.h"
#include "functional/joint_statistics.h"
#include "functional/noisy_codebooks.h"
#include "functional/read_block.h"
#include "functional/refine_options.h"
#include "functional/refit_codebooks.h"

namespace torchvq::functional {
namespace {

// Noise much larger than a code's quantization error would make it a different code.
constexpr double kWidestNoise = 3;

// The result of searching all vectors.
struct Search {
  ReconstructionError error;
  std::vector<at::Tensor> counts;                  // per level (K,), over all processes
  std::optional<JointStatistics> statistics = {};  // for a joint refit
  std::vector<at::Tensor> codes;  // for each block (rows, Q), int32, for a refit by level
};

struct Best {
  LevelCodebooks codebooks;
  std::vector<at::Tensor> counts;
  double error = 0;
};

// Levels with the same tensor share a codebook.
LevelCodebooks level_codebooks(at::TensorList levels) {
  LevelCodebooks found;
  for (const auto& level : levels) {
    size_t owner = 0;
    while (owner < found.distinct.size() && !is_same_codebook(found.distinct[owner], level)) {
      ++owner;
    }
    if (owner == found.distinct.size()) found.distinct.push_back(level);
    found.of_level.push_back(static_cast<int64_t>(owner));
  }
  return found;
}

class Refiner {
 public:
  using Progress = std::function<void(int64_t pass, int64_t rows)>;

  Refiner(const VectorBlocks& vectors, at::TensorList codebooks,
          const RefineCodebooksOptions& options, const Progress& progress)
      : vectors_(vectors),
        options_(options),
        progress_(progress),
        group_(vectors.shard.group_name, {options.label(), {}}),
        codebooks_(level_codebooks(codebooks)) {}

  RefineCodebooksOutput run() {
    rows_ = agreed_rows();
    share_codebooks();
    largest_ = largest_magnitude();
    const auto refits = improve();
    return {best_.codebooks.levels(), best_.counts, before_, best_.error, rows_, refits};
  }

 private:
  bool joint() const { return joint_refit_bytes(codebooks_) <= options_.memory(); }

  // Returns the number of all vectors; throws on all ranks if one has a different stack or options.
  int64_t agreed_rows() const {
    const auto own = description_of(codebooks_.levels(), options_);
    int64_t rows = vectors_.rows;
    if (!group_.alone()) {
      const auto notes =
          distributed::exchange_notes(group_, {rows, own}, codebooks_.distinct[0].device());
      rows = 0;
      bool alike = true;
      for (const auto& note : notes) {
        rows += note.number;
        alike &= note.text == notes[0].text;
      }
      TORCH_CHECK_VALUE(alike, options_.label(), ": expected all ranks to refine alike, but got ",
                        distributed::list_differences(notes));
    }
    check_rows(rows, codebooks_.levels(), options_);
    TORCH_CHECK_VALUE(joint() || codebooks_.distinct.size() == codebooks_.of_level.size(),
                      options_.label(),
                      ": expected memory to hold the system of shared codebooks, ",
                      joint_refit_bytes(codebooks_), " bytes, but got ", options_.memory());
    return rows;
  }

  // Ranks end with the same bits only if they start with them. The refit works on copies.
  void share_codebooks() {
    for (auto& codebook : codebooks_.distinct) {
      codebook = codebook.detach().clone(at::MemoryFormat::Contiguous);
      group_.broadcast_(codebook, "the codebooks");
    }
  }

  double largest_magnitude() const {
    double largest = 0;
    for (int64_t first = 0; first < vectors_.rows; first += vectors_.block_rows) {
      largest = std::max(largest, read(first).abs().max().item<double>());
    }
    const auto most = at::scalar_tensor(largest, at::kDouble)
                          .view({1})
                          .to(codebooks_.distinct[0].device(), at::kDouble);
    group_.max_(most, "the largest magnitude");
    return most.item<double>();
  }

  // Returns the number of refits.
  int64_t improve() {
    const auto annealed = annealed_refits(options_);
    auto found = search(codebooks_, annealed == 0 && options_.iterations() > 0);
    before_ = found.error.squared_error();
    best_ = {codebooks_, found.counts, before_};
    double last = before_;
    for (int64_t refit = 0; refit < options_.iterations(); ++refit) {
      if (refit < annealed) found = search(noisy(refit, annealed), true);
      codebooks_.distinct = refitted(found);
      if (refit + 1 < annealed) continue;
      found = search(codebooks_, refit + 1 < options_.iterations());
      const auto error = found.error.squared_error();
      if (error < best_.error) best_ = {codebooks_, found.counts, error};
      // After noise, one refit without it is needed to settle.
      const bool settled = refit >= annealed && error >= last * (1 - options_.tolerance());
      if (settled) return refit + 1;
      last = error;
    }
    return options_.iterations();
  }

  LevelCodebooks noisy(int64_t refit, int64_t annealed) const {
    const auto error = std::sqrt(before_ / static_cast<double>(rows_ * vectors_.dim));
    const auto share = 1 - static_cast<double>(refit) / static_cast<double>(annealed);
    const NoiseOfCodes noise{.scale = options_.noise() * std::sqrt(share),
                             .widest = kWidestNoise * error,
                             .seed = options_.seed(),
                             .step = refit};
    auto codebooks = codebooks_;
    codebooks.distinct = noisy_codebooks(codebooks_.distinct, noise, group_);
    return codebooks;
  }

  std::vector<at::Tensor> refitted(const Search& found) const {
    if (found.statistics) {
      return refit_jointly(*found.statistics, codebooks_, options_.ridge(), group_);
    }
    return refit_by_level(vectors_, found.codes, codebooks_, largest_, options_.ridge(), group_);
  }

  at::Tensor read(int64_t first) const { return read_block(vectors_, first); }

  at::Tensor codes_of(const at::Tensor& x, const std::vector<at::Tensor>& levels) const {
    const auto rows = x.unsqueeze(0);
    if (options_.beam() == 1) return ops::residual_encode(rows, levels).indices[0];
    const auto how = ops::ResidualBeamSearchOptions().weights(options_.weights());
    return ops::residual_beam_search(rows, levels, options_.beam(), how)[0];
  }

  Search search(const LevelCodebooks& codebooks, bool refits) {
    const auto levels = codebooks.levels();
    const auto heads = with_one_head(levels);
    auto found = nothing_found(levels, refits && joint());
    for (int64_t first = 0; first < vectors_.rows; first += vectors_.block_rows) {
      const auto x = read(first);
      const auto codes = codes_of(x, heads);
      count(found, codes);
      found.error.add(x.cpu(), ops::residual_decode(codes.unsqueeze(0), heads)[0].cpu());
      if (found.statistics) found.statistics->add(x, codes);
      if (refits && !found.statistics) found.codes.push_back(codes.to(at::kInt));
      if (progress_) progress_(searches_, first + x.size(0));
    }
    ++searches_;
    add_over_group(found);
    return found;
  }

  Search nothing_found(const std::vector<at::Tensor>& levels, bool statistics) const {
    Search found;
    for (const auto& level : levels) {
      found.counts.push_back(level.new_zeros({level.size(0)}, at::kLong));
    }
    if (statistics) {
      std::vector<int64_t> sizes;
      for (const auto& codebook : codebooks_.distinct) sizes.push_back(codebook.size(0));
      found.statistics.emplace(std::move(sizes), codebooks_.of_level, vectors_.dim,
                               exponent_for(largest_), levels[0].device());
    }
    return found;
  }

  static void count(Search& found, const at::Tensor& codes) {
    for (size_t level = 0; level < found.counts.size(); ++level) {
      auto& counts = found.counts[level];
      counts += codes.select(1, static_cast<int64_t>(level)).bincount({}, counts.size(0));
    }
  }

  void add_over_group(Search& found) const {
    if (group_.alone()) return;
    for (const auto& counts : found.counts) group_.sum_(counts, "counts of the codes");
    const auto device = codebooks_.distinct[0].device();
    const auto words = found.error.words().to(device);
    group_.sum_(words, "the error");
    found.error.set_words(words.cpu());
    if (found.statistics) found.statistics->add_over(group_);
  }

  const VectorBlocks& vectors_;
  const RefineCodebooksOptions& options_;
  const Progress& progress_;
  const distributed::Group group_;
  LevelCodebooks codebooks_;
  int64_t rows_ = 0;
  double largest_ = 0;
  double before_ = 0;
  int64_t searches_ = 0;
  Best best_;
};

}  // namespace

RefineCodebooksOutput refine_codebooks(
    const VectorBlocks& vectors, at::TensorList codebooks, const RefineCodebooksOptions& options,
    const std::function<void(int64_t pass, int64_t rows)>& progress) {
  const at::NoGradGuard no_grad;
  check_blocks("refine_codebooks", vectors);
  check_refine(vectors.dim, codebooks, options);
  return Refiner(vectors, codebooks, options, progress).run();
}

}  // namespace torchvq::functional
