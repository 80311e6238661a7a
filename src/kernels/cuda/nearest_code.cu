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
constexpr int64_t kCodesPerSegment = FloatTile<kListTile>::kCodes, kMostSegments = kMostRivals;
constexpr int64_t kFewestGroupSegments = 16, kMostGroupSegments = 64;
// Products for each multiprocessor up to which one close scan costs less than more launches.
constexpr int64_t kSmallSearch = int64_t{1} << 19;

/// The scans of a search, and how many blocks they take.
struct SearchPlan {
  int processors;      ///< of the device
  bool half;           ///< all rows are screened in half precision first, then those that it leaves open
  bool groups;         ///< by groups of four warps, for rows in half precision
  bool groups_of_open;  ///< by groups of four warps, for open rows, or for all rows if not `half`
  GroupPlan group;

  SearchPlan(const NearestCodeTask<float>& task, const Queue& queue) : group(task.dim) {
    const int known = processors_of(queue);
    processors = known > 0 ? known : 128;
#if defined(TORCHVQ_CUDA_GROUP_PRODUCTS)
    const bool capable = capability_of(queue.device) == 9;
#else
    const bool capable = false;
#endif
    const auto shared = static_cast<size_t>(shared_memory_of(queue));
    groups = capable && group.shared(Scan::kHalf) <= shared;
    groups_of_open = capable && group.shared(Scan::kSplit) <= shared;
    const bool small = task.tokens * task.size * task.dim <= kSmallSearch * processors;
    half = groups_of_open ? !group.packed && !small
                          : task.dim > kFewDimensions && task.dim <= kMostDimensions;
    groups = groups && half;
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
  state.padded_size = rounded_up(task.size, kTileCodes);
  state.padded_tokens = rounded_up(task.tokens, kTileRows);
  state.depth = plan.groups ? plan.group.depth() : rounded_up(task.dim, kTileDepth);
  const bool groups = plan.groups || plan.groups_of_open;
  state.code_stride = groups ? plan.group.code_stride() : state.depth;
  state.products = groups ? plan.group.products(Scan::kHalf) : state.depth / kDepthOfMma;
  state.split_products = plan.group.products(Scan::kSplit);
  if (plan.groups_of_open) {
    const auto wanted = 2 * plan.processors / (state.padded_tokens / kTileRows);
    const auto most = state.padded_size / kTileCodes;
    const auto segments = std::clamp(wanted, kFewestGroupSegments, kMostGroupSegments);
    state.segments = static_cast<int>(segments < most ? segments : most);
  } else {
    const int64_t segments = (task.size + kCodesPerSegment - 1) / kCodesPerSegment;
    state.segments = static_cast<int>(segments < kMostSegments ? segments : kMostSegments);
  }
  cutter.cut(state.facts, 1);
  cutter.cut(state.status, task.size);
  cutter.cut(state.center, task.dim);
  cutter.cut(state.half_norms, state.padded_size);
  cutter.cut(state.norms, task.tokens);
  cutter.cut(state.open_in_double, task.tokens);
  cutter.cut(state.rivalries, task.tokens);
  cutter.cut(state.rivals, task.tokens * kMostRivals);
  if (!plan.half && !plan.groups_of_open) return;
  cutter.cut(state.codes, state.padded_size * state.code_stride);
  cutter.cut(state.losses, task.tokens);
  if (groups) {
    cutter.cut(state.split_losses, task.tokens);
  } else {
    cutter.cut(state.rows, state.padded_tokens * state.depth);
    cutter.cut(state.units, state.padded_tokens);
  }
  cutter.cut(state.open_in_float, task.tokens);
  char* contests = nullptr;
  cutter.cut(contests, static_cast<int64_t>(Contests::bytes(task.tokens, state.segments)));
  state.segment_contests = contests;
}

void prepare(Steps& steps, const SearchState& state, const SearchPlan& plan, const Queue& queue) {
  const auto& task = state.task;
  steps.add(fill_bytes(queue, state.facts, 0, sizeof(SearchFacts)));
  if (task.cosine) steps.add(fill_bytes(queue, state.center, 0, sizeof(float) * task.dim));
  prepare_codes(steps, OneCodebook{state}, {1, state.padded_size, task.dim, task.cosine},
                [&](unsigned blocks) {
                  if (plan.groups || plan.groups_of_open) {
                    steps.run(split_codes, blocks, kPrepareThreads, 0, state, plan.group);
                  } else if (plan.half) {
                    steps.run(round_codes<OneCodebook>, blocks, kPrepareThreads, 0,
                              OneCodebook{state});
                  }
                });
  if (plan.groups || plan.groups_of_open) return;
  steps.run(plan.half ? prepare_rows<true> : prepare_rows<false>,
            blocks_of_warps(plan.half ? state.padded_tokens : task.tokens), kPrepareThreads, 0,
            state);
}

/// Blocks for a list whose length is known only on the device: as many as can run at once.
unsigned blocks_for_list(int64_t most_rows, int64_t each, const SearchPlan& plan) {
  return blocks_for(most_rows, each, 4 * static_cast<int64_t>(plan.processors));
}

/// Screens all rows in half precision.
void scan_in_half(Steps& steps, const SearchState& state, const SearchPlan& plan) {
  const auto& task = state.task;
  if (!plan.groups) {
    steps.run(scan_half, blocks_for(task.tokens, kTileRows), kHalfThreads, kHalfShared, state);
    return;
  }
  const RowList all = {nullptr, nullptr, task.tokens};
  const auto shared = plan.group.shared(Scan::kHalf);
  const auto tiles = blocks_for(task.tokens, kGroupRows);
  if (state.padded_tokens / kGroupRows < plan.processors && plan.groups_of_open) {
    steps.run(scan_groups<Scan::kHalf, true, 2>, tiles * static_cast<unsigned>(state.segments),
              kGroupThreads, shared, state, plan.group, all);
    steps.run(close_segments<Scan::kHalf>, blocks_for(task.tokens, kCloseThreads), kCloseThreads, 0,
              state, all);
  } else {
    steps.run(scan_groups<Scan::kHalf, false, 2>, tiles, kGroupThreads, shared, state, plan.group,
              all);
  }
}

/// Screens the rows of a list, or all rows, closer than in half precision.
void scan_closer(Steps& steps, const SearchState& state, const SearchPlan& plan,
                 const RowList& list) {
  const auto& task = state.task;
  const auto segments = static_cast<unsigned>(state.segments);
  if (!plan.groups_of_open) {
    const unsigned tiles = blocks_for_list(task.tokens, kListTile, plan);
    steps.run(scan_float<kListTile, kFloatDepth, true>, tiles * segments, kFloatThreads,
              FloatTile<kListTile>::kShared, state, list);
    steps.run(close_segments<Scan::kFloat>, blocks_for_list(task.tokens, kCloseThreads, plan),
              kCloseThreads, 0, state, list);
    return;
  }
  const auto shared = plan.group.shared(Scan::kSplit);
  if (plan.group.packed && state.padded_tokens / kGroupRows >= plan.processors) {
    steps.run(scan_groups<Scan::kSplit, false, 2>, blocks_for(task.tokens, kGroupRows),
              kGroupThreads, shared, state, plan.group, list);
    return;
  }
  const auto scan = plan.group.packed ? scan_groups<Scan::kSplit, true, 2>
                                      : scan_groups<Scan::kSplit, true, 1>;
  steps.run(scan, blocks_for_list(task.tokens, kGroupRows, plan) * segments, kGroupThreads, shared,
            state, plan.group, list);
  steps.run(close_segments<Scan::kSplit>, blocks_for_list(task.tokens, kCloseThreads, plan),
            kCloseThreads, 0, state, list);
}

void search(Steps& steps, const SearchState& state, const SearchPlan& plan) {
  const auto& task = state.task;
  const auto& facts = *state.facts;  // only the address is used; the host cannot read it
  const RowList all = {nullptr, nullptr, task.tokens};
  if (plan.half) {
    scan_in_half(steps, state, plan);
    scan_closer(steps, state, plan, {state.open_in_float, &facts.open_in_float, 0});
  } else if (plan.groups_of_open) {
    scan_closer(steps, state, plan, all);
  } else {
    const bool flat = task.dim <= kFloatDepth / 2;  // half of the usual rounds would be zeros
    const auto scan = flat ? scan_float<kFullTile, kFloatDepth / 2, false>
                           : scan_float<kFullTile, kFloatDepth, false>;
    steps.run(scan, blocks_for(task.tokens, kFullTile), kFloatThreads,
              FloatTile<kFullTile>::kShared, state, all);
  }
  const auto parts = static_cast<int>(
      blocks_for(task.size, kExactThreads, kMostRivals));  // each has codes for all threads
  const unsigned tiles = blocks_for_list(task.tokens, kExactRows, plan);
  steps.run(list_exact_rivals, tiles * parts, kExactThreads, exact_shared<float>(), state, parts);
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
  prepare(steps, state, plan, queue);
  search(steps, state, plan);
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
            exact_shared<double>(), state.task, state.status);
  return steps.error();
}

Error finish_nearest_code(const FoundCodes<float>& found, const Queue& queue) {
  return finish(found, queue);
}

Error finish_nearest_code(const FoundCodes<double>& found, const Queue& queue) {
  return finish(found, queue);
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
