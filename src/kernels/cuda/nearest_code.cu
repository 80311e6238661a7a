#include "kernels/cuda/nearest_code.h"

#include <algorithm>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/nearest_code_decide-inl.h"
#include "kernels/cuda/nearest_code_float-inl.h"
#include "kernels/cuda/nearest_code_group-inl.h"
#include "kernels/cuda/nearest_code_half-inl.h"
#include "kernels/cuda/nearest_code_prepare-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr int64_t kMostDimensions = 1 << 14;  // of half precision: beyond, the bound is of no use
constexpr int kFullTile = 64, kListTile = 16;
// Codes are split over blocks if each gets a tile of them.
constexpr int64_t kCodesPerSegment = FloatTile<kListTile>::kCodes, kMostSegments = 8;
constexpr int64_t kMostCollectSegments = 64;
// Products for each multiprocessor up to which exact scores cost less than more launches: fewer where float64 may be slow,
// on other cards than those with products of groups.
constexpr int64_t kExactProducts = int64_t{1} << 12, kMoreExactProducts = int64_t{1} << 15;

/// The scans of a search.
struct SearchPlan {
  int64_t processors;  ///< of the device
  bool exact;          ///< all scores of all rows
  bool half;           ///< in half precision first, then those rows that it leaves open
  bool groups;         ///< by groups of four warps
  GroupPlan group;

  SearchPlan(const NearestCodeTask<float>& task, const Queue& queue) : group(task.dim) {
    const int known = processors_of(queue);
    processors = known > 0 ? known : 128;
#if defined(TORCHVQ_CUDA_GROUP_PRODUCTS)
    const bool capable = capability_of(queue.device) == 9;
#else
    const bool capable = false;
#endif
    const int64_t most = capable ? kMoreExactProducts : kExactProducts;
    exact = task.tokens * task.size * task.dim <= most * processors;
    groups = !exact && capable && task.dim <= kMostDimensions &&
             group.shared() <= static_cast<size_t>(shared_memory_of(queue));
    half = !exact &&
           (groups ? !group.split : task.dim > kFewDimensions && task.dim <= kMostDimensions);
  }
};

template <typename T>
struct UnitVectors {
  T *x = nullptr, *codebook = nullptr;

  UnitVectors(Cutter& cutter, const NearestCodeTask<T>& task) {
    if (!task.cosine) return;
    cutter.cut(x, task.tokens * task.dim);
    cutter.cut(codebook, task.size * task.dim);
  }

  Error fill(const NearestCodeTask<T>& task, const Queue& queue) const {
    if (!task.cosine) return nullptr;
    const auto unit = [&](const T* from, int64_t count, T* to) {
      return launch(make_unit_rows<T>, queue, blocks_for(count, kPrepareThreads), kPrepareThreads,
                    0, from, count, task.dim, to);
    };
    if (const auto error = unit(task.x, task.tokens, x)) return error;
    return unit(task.codebook, task.size, codebook);
  }

  void replace(NearestCodeTask<T>& task) const {
    if (!task.cosine) return;
    task.x = x;
    task.codebook = codebook;
  }
};

void cut_state(Cutter& cutter, SearchState& state, const SearchPlan& plan) {
  const auto& task = state.task;
  cutter.cut(state.facts, 1);
  cutter.cut(state.status, task.size);
  cutter.cut(state.rivalries, task.tokens);
  cutter.cut(state.rivals, task.tokens * kMostRivals);
  cutter.cut(state.rival_counts, task.tokens);
  if (plan.exact) return;
  state.padded_size = rounded_up(task.size, kTileCodes);
  state.padded_tokens = rounded_up(task.tokens, kTileRows);
  state.depth = plan.groups ? plan.group.depth() : rounded_up(task.dim, kTileDepth);
  state.products = plan.groups ? plan.group.products() : state.depth / kDepthOfMma;
  const int64_t segments = (task.size + kCodesPerSegment - 1) / kCodesPerSegment;
  state.segments = static_cast<int>(segments < kMostSegments ? segments : kMostSegments);
  cutter.cut(state.center, task.dim);
  cutter.cut(state.half_norms, state.padded_size);
  cutter.cut(state.norms, task.tokens);
  if (!plan.groups) cutter.cut(state.open_in_double, task.tokens);
  if (!plan.half && !plan.groups) return;
  cutter.cut(state.codes, state.padded_size * state.depth);
  cutter.cut(state.losses, task.tokens);
  cutter.cut(state.open_in_float, task.tokens);
  if (!plan.groups) {
    cutter.cut(state.rows, state.padded_tokens * state.depth);
    cutter.cut(state.units, state.padded_tokens);
  } else if (plan.half) {
    cutter.cut(state.limits, task.tokens);
    cutter.cut(state.open_in_half, task.tokens);
  } else {
    cutter.cut(state.split_losses, task.tokens);
  }
  char* contests = nullptr;
  cutter.cut(contests, static_cast<int64_t>(Contests::bytes(task.tokens, state.segments)));
  state.segment_contests = contests;
}

void prepare(Steps& steps, const SearchState& state, const SearchPlan& plan, const Queue& queue) {
  const auto& task = state.task;
  if (task.cosine) steps.add(fill_bytes(queue, state.center, 0, sizeof(float) * task.dim));
  prepare_codes(steps, OneCodebook{state}, {1, state.padded_size, task.dim, task.cosine},
                [&](unsigned blocks) {
                  if (plan.groups) {
                    steps.run(round_group_codes, blocks, kPrepareThreads, 0, state, plan.group);
                  } else if (plan.half) {
                    steps.run(round_codes<OneCodebook>, blocks, kPrepareThreads, 0,
                              OneCodebook{state});
                  }
                });
  if (plan.groups) return;
  steps.run(plan.half ? prepare_rows<true> : prepare_rows<false>,
            blocks_of_warps(plan.half ? state.padded_tokens : task.tokens), kPrepareThreads, 0,
            state);
}

/// Blocks for a list whose length is known only on the device: as many as can run at once.
unsigned blocks_for_list(int64_t most_rows, int64_t each, const SearchPlan& plan) {
  return blocks_for(most_rows, each, 4 * plan.processors);
}

/// Screens all rows by groups of four warps: on ranges of codes too where there are too few rows for all blocks. Then
/// lists the close codes of the rows that are left open.
template <Scan scan>
void scan_groups_of_warps(Steps& steps, const SearchState& state, const SearchPlan& plan) {
  const auto& task = state.task;
  const RowList all = {nullptr, nullptr, nullptr, task.tokens};
  const int64_t tiles = state.padded_tokens / kGroupRows, codes = state.padded_size / kTileCodes;
  const auto shared = plan.group.shared();
  SearchState parts = state;
  if (tiles >= plan.processors) {
    steps.run(scan_groups<scan, GroupScan::kClose>, blocks_for(tiles, 1), kGroupThreads, shared,
              state, plan.group, all);
  } else {
    const int64_t wanted = (2 * plan.processors + tiles - 1) / tiles;
    parts.segments = static_cast<int>(std::min({wanted, codes, int64_t{state.segments}}));
    steps.run(scan_groups<scan, GroupScan::kSegments>,
              static_cast<unsigned>(tiles * parts.segments), kGroupThreads, shared, parts,
              plan.group, all);
    steps.run(close_segments<scan>, blocks_for(task.tokens, kCloseThreads), kCloseThreads, 0, parts,
              all);
  }
  if constexpr (scan == Scan::kHalf) {
    parts.segments = static_cast<int>(std::min(codes, kMostCollectSegments));
    const RowList open = {state.open_in_half, state.rivalries, &state.facts->open_in_half, 0};
    const int64_t most = (4 * plan.processors + parts.segments - 1) / parts.segments;
    steps.run(scan_groups<scan, GroupScan::kCollect>,
              static_cast<unsigned>(std::min(tiles, most) * parts.segments), kGroupThreads, shared,
              parts, plan.group, open);
  }
}

/// Screens all rows in float32.
void scan_all_in_float(Steps& steps, const SearchState& state) {
  const auto& task = state.task;
  const RowList all = {nullptr, nullptr, nullptr, task.tokens};
  const bool flat = task.dim <= kFloatDepth / 2;  // half of the usual rounds would be zeros
  const auto scan = flat ? scan_float<kFullTile, kFloatDepth / 2, false>
                         : scan_float<kFullTile, kFloatDepth, false>;
  steps.run(scan, blocks_for(task.tokens, kFullTile), kFloatThreads, FloatTile<kFullTile>::kShared,
            state, all);
}

/// Screens in float32 the rows that half precision leaves open.
void scan_open_in_float(Steps& steps, const SearchState& state, const SearchPlan& plan) {
  const RowList open = {state.open_in_float, state.rivalries, &state.facts->open_in_float, 0};
  const auto segments = static_cast<unsigned>(state.segments);
  const int64_t tokens = state.task.tokens;
  steps.run(scan_float<kListTile, kFloatDepth, true>,
            blocks_for_list(tokens, kListTile, plan) * segments, kFloatThreads,
            FloatTile<kListTile>::kShared, state, open);
  steps.run(close_segments<Scan::kFloat>, blocks_for_list(tokens, kCloseThreads, plan),
            kCloseThreads, 0, state, open);
}

/// Screens all rows, in half precision where that is faster, and lists those that stay open.
void screen(Steps& steps, const SearchState& state, const SearchPlan& plan) {
  if (plan.groups && plan.half) {
    scan_groups_of_warps<Scan::kHalf>(steps, state, plan);
  } else if (plan.groups) {
    scan_groups_of_warps<Scan::kSplit>(steps, state, plan);
  } else if (plan.half) {
    steps.run(scan_half, blocks_for(state.task.tokens, kTileRows), kHalfThreads, kHalfShared,
              state);
  } else {
    scan_all_in_float(steps, state);
  }
  if (plan.half && !plan.groups) scan_open_in_float(steps, state, plan);
}

/// Lists for each part of the codebook the nearest code of rows, by exact scores.
template <int rows>
void list_exact(Steps& steps, const SearchState& state, const SearchPlan& plan, const RowList& list,
                int parts) {
  const unsigned tiles = blocks_for_list(state.task.tokens, rows, plan);
  steps.run(list_exact_rivals<rows>, tiles * static_cast<unsigned>(parts), kExactThreads,
            exact_shared<float, rows>(), state, list, parts);
}

void search(Steps& steps, const SearchState& state, const SearchPlan& plan, const Queue& queue) {
  const auto& task = state.task;
  const auto& facts = *state.facts;  // only the address is used; the host cannot read it
  steps.add(fill_bytes(queue, state.facts, 0, sizeof(SearchFacts)));
  const auto parts = static_cast<int>(
      blocks_for(task.size, kExactThreads, kMostRivals));  // each has codes for all threads
  if (plan.exact) {
    steps.run(begin_exact_search, blocks_of_warps(task.size + task.tokens), kPrepareThreads, 0,
              state, parts);
    list_exact<kExactRows>(steps, state, plan, {nullptr, nullptr, nullptr, task.tokens}, parts);
  } else {
    prepare(steps, state, plan, queue);
    screen(steps, state, plan);
    const RowList open =
        plan.groups ? RowList{state.open_in_float, state.rivalries, &facts.open_in_float, 0}
                    : RowList{state.open_in_double, state.rivalries, &facts.open_in_double, 0};
    list_exact<kExactListRows>(steps, state, plan, open, parts);
  }
  const int64_t rivals_of_block = kRivalThreads / kMostRivals;
  steps.run(decide_rivals, blocks_for_list(task.tokens, rivals_of_block, plan), kRivalThreads, 0,
            state);
}

template <typename T>
Error finish(const FoundCodes<T>& found, const Queue& queue) {
  const auto& task = found.task;
  if (task.tokens == 0) return nullptr;
  Steps steps(queue);
  if (found.codes)
    steps.run(gather_codes<T>, blocks_for(task.tokens, kExactThreads / kWarp), kExactThreads, 0,
              found);
  if (!found.codes || found.distances)
    steps.run(finish_rows<T>, blocks_for(task.tokens, kExactThreads), kExactThreads, 0, found);
  return steps.error();
}

struct WideState {
  NearestCodeTask<double> task;
  SearchFacts* facts = nullptr;
  uint8_t* status = nullptr;
  UnitVectors<double> units;

  WideState(Cutter& cutter, const NearestCodeTask<double>& task_)
      : task(task_), units(cutter, task_) {
    cutter.cut(facts, 1);
    cutter.cut(status, task.size);
    units.replace(task);
  }
};

}  // namespace

size_t nearest_code_workspace(const NearestCodeTask<float>& task, const Queue& queue) {
  Cutter cutter(nullptr);
  const UnitVectors<float> units(cutter, task);
  SearchState state;
  state.task = task;
  cut_state(cutter, state, SearchPlan(task, queue));
  return cutter.used();
}

size_t nearest_code_workspace(const NearestCodeTask<double>& task, const Queue&) {
  Cutter cutter(nullptr);
  const WideState state(cutter, task);
  return cutter.used();
}

Error nearest_code(const NearestCodeTask<float>& task, void* workspace, const Queue& queue) {
  if (task.tokens == 0) return nullptr;
  Cutter cutter(workspace);
  const UnitVectors<float> units(cutter, task);
  SearchState state;
  state.task = task;
  const SearchPlan plan(task, queue);
  cut_state(cutter, state, plan);
  units.replace(state.task);
  Steps steps(queue);
  steps.add(units.fill(task, queue));
  search(steps, state, plan, queue);
  return steps.error();
}

Error nearest_code(const NearestCodeTask<double>& task, void* workspace, const Queue& queue) {
  if (task.tokens == 0) return nullptr;
  Cutter cutter(workspace);
  const WideState state(cutter, task);
  Steps steps(queue);
  steps.add(state.units.fill(task, queue));
  steps.add(fill_bytes(queue, state.facts, 0, sizeof(SearchFacts)));
  steps.run(classify_wide_codes<double>, blocks_of_warps(task.size), kPrepareThreads, 0, state.task,
            state.status, state.facts);
  steps.run(mark_rows<double>, blocks_for(task.tokens, kExactThreads / kWarp), kExactThreads, 0,
            state.task);
  steps.run(scan_exact<double>, blocks_for(task.tokens, kExactRows), kExactThreads,
            exact_shared<double, kExactRows>(), state.task, state.status);
  return steps.error();
}

Error finish_nearest_code(const FoundCodes<float>& found, const Queue& queue) {
  return finish(found, queue);
}

Error finish_nearest_code(const FoundCodes<double>& found, const Queue& queue) {
  return finish(found, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
