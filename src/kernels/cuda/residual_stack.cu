#include "kernels/cuda/residual_stack.h"

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/nearest_code_prepare-inl.h"
#include "kernels/cuda/residual_stack_scan-inl.h"

namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE {
namespace {

constexpr int kRowsOfFew = 32;  // per tile, if there are few dimensions

/// A codebook of all heads and the arrays computed from it; in each array,
/// heads follow one another.
struct StackCodebook {
  const float* codes = nullptr;     ///< subtracted from rows
  const float* searched = nullptr;  ///< compared with rows: unit vectors for cosine
  float* units = nullptr;           ///< storage of the unit vectors, for cosine
  uint8_t* status = nullptr;
  float* half_norms = nullptr;
  uint16_t* halves = nullptr;  ///< float32 if there are few dimensions
  int64_t size = 0, padded_size = 0;
};

/// The kernels' argument. Codebooks shared by levels are stored once.
struct ResidualStack {
  const float* x;
  const bool* mask;
  int64_t heads, tokens, dim, depth;
  float* quantized;
  int64_t* indices;
  int64_t stride;
  SearchFacts* facts = nullptr;  ///< (books, heads)
  float* centers = nullptr;      ///< (books, heads, dim)
  StackCodebook books[kMostStackLevels];
  uint8_t book_of_level[kMostStackLevels];
  int levels, book_count = 0;
  bool cosine;
  SearchFault fault;

  ResidualStack(const ResidualStackTask& task, Cutter& cutter);
  int64_t padded_codes() const;

  __device__ int count() const { return book_count * static_cast<int>(heads); }
  __device__ SearchState of(int item) const {
    const auto all_heads = static_cast<int>(heads);
    return state_of(item / all_heads, item % all_heads);
  }
  /// Leaves out `rows` and the lists, which every block keeps for itself.
  __device__ SearchState state_of(int book, int64_t head) const {
    const StackCodebook& from = books[book];
    const int64_t place = book * heads + head;
    SearchState state;
    state.task.codebook = from.searched + head * from.size * dim;
    state.task.size = from.size, state.task.dim = dim, state.task.cosine = cosine;
    state.task.fault = fault;
    state.facts = facts + place;
    state.status = from.status + head * from.size;
    state.center = centers + place * dim;
    state.half_norms = from.half_norms + head * from.padded_size;
    state.codes = from.halves + head * from.padded_size * depth;
    state.padded_size = from.padded_size, state.depth = depth;
    state.products = depth / kDepthOfMma;
    return state;
  }
};
static_assert(sizeof(ResidualStack) <= 4096, "all that a launch takes along");

ResidualStack::ResidualStack(const ResidualStackTask& task, Cutter& cutter)
    : x(task.x),
      mask(task.mask),
      heads(task.heads),
      tokens(task.tokens),
      dim(task.dim),
      depth(rounded_up(task.dim, kTileDepth)),
      quantized(task.quantized),
      indices(task.indices),
      stride(task.stride),
      levels(task.levels),
      cosine(task.cosine),
      fault(task.fault) {
  for (int level = 0; level < levels; ++level) {
    int book = 0;
    const auto same = [&](const StackCodebook& other) {
      return other.codes == task.codebooks[level] && other.size == task.sizes[level];
    };
    while (book < book_count && !same(books[book])) ++book;
    book_of_level[level] = static_cast<uint8_t>(book);
    if (book < book_count) continue;
    books[book_count++] = {.codes = task.codebooks[level], .size = task.sizes[level]};
  }
  // Adjacent, so that one call clears both.
  cutter.cut(facts, book_count * heads);
  cutter.cut(centers, book_count * heads * dim);
  for (int i = 0; i < book_count; ++i) {
    StackCodebook& book = books[i];
    book.padded_size = rounded_up(book.size, kTileCodes);
    cutter.cut(book.status, heads * book.size);
    cutter.cut(book.half_norms, heads * book.padded_size);
    cutter.cut(book.halves, heads * book.padded_size * depth);
    if (cosine) cutter.cut(book.units, heads * book.size * dim);
    book.searched = cosine ? book.units : book.codes;
  }
}

int64_t ResidualStack::padded_codes() const {
  int64_t sum = 0;
  for (int i = 0; i < book_count; ++i) sum += heads * books[i].padded_size;
  return sum;
}

/// One thread per code: normalizes it.
__global__ void __launch_bounds__(kPrepareThreads) make_unit_codes(ResidualStack stack) {
  int64_t code = grid_thread();
  for (int i = 0; i < stack.book_count; ++i) {
    const StackCodebook& book = stack.books[i];
    const int64_t count = stack.heads * book.size;
    for (; code < count; code += grid_threads())
      make_unit_row(book.codes + code * stack.dim, stack.dim, book.units + code * stack.dim);
    code -= count;
  }
}

/// One warp per code of few dimensions.
__global__ void __launch_bounds__(kPrepareThreads) center_codes(ResidualStack stack) {
  for_codes(stack, [](const SearchState& state, int64_t code) {
    const bool screened = code < state.task.size && state.status[code] == kScreened;
    center_vector(state.task.codebook + code * state.task.dim, state.center,
                  screened ? state.task.dim : 0, state.codes + code * state.depth);
  });
}

/// Row `at` of the tile is row first + at of the head; rows are numbered over all heads in memory.
template <int rows>
__device__ void begin_tile(const ResidualStack& stack, const StackTile& tile, int64_t head,
                           int64_t first) {
  for (int at = warp_of_block(); at < rows; at += kStackWarps) {
    const int64_t row = head * stack.tokens + first + at;
    const bool real = first + at < stack.tokens && (stack.mask == nullptr || stack.mask[row]);
    for (int64_t d = lane_of_warp(); d < stack.dim; d += kWarp)
      tile.left[at * tile.stride + d] = real ? stack.x[row * stack.dim + d] : 0.0f;
    clear_vector(stack.depth, tile.halves + at * tile.half_stride);
    if (lane_of_warp() != 0) continue;
    tile.found[at] = real ? 0 : static_cast<int32_t>(kNoRow);
    tile.units[at] = 0;
    tile.limits[at] = HUGE_VALF;  // infinite: a missing row has no close calls
  }
}

/// The norms that cosine divides by, computed as in make_unit_row.
template <int rows>
__device__ void measure_lengths(const StackTile& tile, int64_t dim) {
  const auto at = static_cast<int>(threadIdx.x);
  if (at >= rows) return;
  const float* from = tile.left + at * tile.stride;
  double square = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const double value = from[d];
    square += value * value;
  }
  tile.lengths[at] = sqrt(square);
}

/// One warp per row: prepares it for the codes of a level.
template <int rows, bool cosine, bool few>
__device__ void ready_rows(const SearchState& state, const StackTile& tile) {
  const int64_t dim = state.task.dim;
  for (int at = warp_of_block(); at < rows; at += kStackWarps) {
    if (tile.found[at] == kNoRow) continue;
    const auto from = tile.row<cosine>(at);
    const double norm = norm_of_row(from, state.center, dim);
    uint16_t* to = tile.halves + at * tile.half_stride;
    double loss = 0;
    int scale = 0;
    if (!(norm < kLargestNorm)) {
      clear_vector(state.depth, to);
    } else if constexpr (few) {
      center_vector(from, state.center, dim, to);
    } else {
      scale = scale_of(norm);
      loss = round_vector(from, state.center, dim, state.depth, scale, to);
    }
    if (lane_of_warp() != 0) continue;
    tile.norms[at] = __double2float_ru(norm);
    tile.losses[at] = __double2float_ru(loss);
    tile.units[at] = few ? 1.0f : unit_of(scale, state.facts->bound);
  }
}

/// One thread per row after the first scan: its code, or the way to decide it.
template <int rows, bool few>
__device__ void close_rows(const SearchState& state, const StackTile& tile,
                           const Contests& contests) {
  const auto at = static_cast<int>(threadIdx.x);
  if (at >= rows || tile.found[at] == kNoRow) return;
  const double norm = tile.norms[at];
  tile.limits[at] = HUGE_VALF;
  if (isnan(norm)) {
    tile.found[at] = kLostRow;
    return;
  }
  const double margin =
      margin_of<few ? Scan::kFloat : Scan::kHalf>(state.facts->bound, {norm, tile.losses[at]});
  const Standing standing(contests, at, margin, state.task.fault);
  if (!standing.decides()) {
    tile.found[at] = kExactRow;
  } else if (standing.open) {
    tile.found[at] = kOpenRow;
    tile.limits[at] = -__double2float_ru(-standing.limit);  // rounds down
    atomicAdd(&tile.counts[1], 1);
  } else if (standing.rivals == 1) {
    tile.found[at] = contests.code[standing.winner];
  } else {
    tile.found[at] = kCloseRow;  // add_close may change it when the list is full
    standing.for_rivals(contests, at, [&](int32_t code) { tile.add_close(at, code); });
  }
}

/// Lists every code that reaches the limit of an open row, by a second scan.
template <int rows, bool few>
__device__ void list_close_codes(const SearchState& state, const StackTile& tile) {
  using Shape = StackShape<rows>;
  float limits[Shape::kRowFragments][2];
#pragma unroll
  for (int i = 0; i < Shape::kRowFragments; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) limits[i][r] = tile.limits[Shape::row(i, r)];
  scan_tile<rows, few>(state, tile, [&](int i, int r, float score, int32_t index) {
    if (score >= limits[i][r]) tile.add_close(Shape::row(i, r), index);
  });
}

/// One thread per close call, then one per row.
template <int rows, bool cosine>
__device__ void decide_close_calls(const SearchState& state, const StackTile& tile) {
  const auto& task = state.task;
  auto* scores = static_cast<double*>(tile.scratch);
  const int count = tile.close_calls();
  for (auto call = static_cast<int>(threadIdx.x); call < count; call += kStackThreads) {
    const float* code = task.codebook + tile.close_codes[call] * task.dim;
    scores[call] = score_of(tile.row<cosine>(tile.close_rows[call]), code, task.dim, cosine);
  }
  __syncthreads();
  const auto at = static_cast<int>(threadIdx.x);
  if (at >= rows) return;
  const int32_t found = tile.found[at];
  if (found == kCloseRow || found == kOpenRow) {
    Verdict verdict;
    for (int call = 0; call < count; ++call)
      if (tile.close_rows[call] == at) verdict.take(scores[call], tile.close_codes[call]);
    tile.found[at] = verdict.code >= 0 ? verdict.code : static_cast<int32_t>(kExactRow);
  }
  if (tile.found[at] == kExactRow) tile.exact[atomicAdd(&tile.counts[2], 1)] = at;
}

/// Scores all codes for the rows that are still undecided.
template <bool cosine>
__device__ void decide_exact_rows(const SearchState& state, const StackTile& tile) {
  const int count = tile.counts[2];
  for (int first = 0; first < count; first += kExactRows) {
    const int* list = tile.exact + first;
    decide_rows<kExactRows>(
        state.task, state.status, {0, state.task.size}, min(count - first, kExactRows),
        tile.scratch, [&](int row, int64_t d) { return tile.row<cosine>(list[row])[d]; },
        [&](int row, const Verdict& verdict) { tile.found[list[row]] = verdict.code; });
  }
}

/// Finds the nearest codes of a level, in tile.found.
template <int rows, bool cosine, bool few>
__device__ void search_level(const SearchState& state, const StackTile& tile) {
  using Shape = StackShape<rows>;
  if constexpr (cosine) {
    measure_lengths<rows>(tile, state.task.dim);
    __syncthreads();
  }
  ready_rows<rows, cosine, few>(state, tile);
  if (threadIdx.x < 3) tile.counts[threadIdx.x] = 0;
  __syncthreads();

  RowContests<Shape::kRowFragments> contests;
  scan_tile<rows, few>(state, tile, [&](int i, int r, float score, int32_t index) {
    contests.at(i, r).take(score, index);
  });
  const Contests table(tile.scratch, rows, Shape::kLanes);
#pragma unroll
  for (int i = 0; i < Shape::kRowFragments; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) table.put(Shape::row(i, r), Shape::lane(), contests.at(i, r));
  __syncthreads();
  close_rows<rows, few>(state, tile, table);
  __syncthreads();
  if (tile.counts[1] > 0) list_close_codes<rows, few>(state, tile);
  decide_close_calls<rows, cosine>(state, tile);
  __syncthreads();
  decide_exact_rows<cosine>(state, tile);
  __syncthreads();
}

/// One warp per row: writes the index of a level and subtracts the code from the residual.
template <int rows>
__device__ void take_codes(const ResidualStack& stack, const StackTile& tile, int64_t head,
                           int64_t first, int level) {
  const StackCodebook& book = stack.books[stack.book_of_level[level]];
  for (int at = warp_of_block(); at < rows && first + at < stack.tokens; at += kStackWarps) {
    const int32_t found = tile.found[at];
    const int64_t row = head * stack.tokens + first + at;
    if (lane_of_warp() == 0)
      stack.indices[row * stack.stride + level] = found == kNoRow ? -1 : max(found, 0);
    if (found == kNoRow) continue;
    const float* code = book.codes + (head * book.size + max(found, 0)) * stack.dim;
    for (int64_t d = lane_of_warp(); d < stack.dim; d += kWarp) {
      float& left = tile.left[at * tile.stride + d];
      left -= found < 0 ? NAN : code[d];
    }
  }
}

/// Adds the codes of all levels again, from zero as on CPU.
template <int rows>
__device__ void end_tile(const ResidualStack& stack, const StackTile& tile, int64_t head,
                         int64_t first) {
  for (int at = warp_of_block(); at < rows && first + at < stack.tokens; at += kStackWarps) {
    const int32_t found = tile.found[at];
    const int64_t row = head * stack.tokens + first + at;
    int64_t* indices = stack.indices + row * stack.stride;
    for (int64_t level = stack.levels + lane_of_warp(); level < stack.stride; level += kWarp)
      indices[level] = -1;
    for (int64_t d = lane_of_warp(); d < stack.dim; d += kWarp) {
      float sum = found == kLostRow ? NAN : 0.0f;
      for (int level = 0; found >= 0 && level < stack.levels; ++level) {
        const StackCodebook& book = stack.books[stack.book_of_level[level]];
        sum += book.codes[(head * book.size + indices[level]) * stack.dim + d];
      }
      stack.quantized[row * stack.dim + d] = sum;
    }
  }
}

template <int rows, bool cosine, bool few>
__global__ void __launch_bounds__(kStackThreads, 2) encode_stack(ResidualStack stack) {
  const StackTile tile(shared_memory<unsigned char>(), rows, stack.dim, stack.depth);
  const int64_t tiles = (stack.tokens + rows - 1) / rows;
  for (int64_t item = blockIdx.x; item < tiles * stack.heads; item += gridDim.x) {
    const int64_t head = item / tiles, first = item % tiles * rows;
    begin_tile<rows>(stack, tile, head, first);
    __syncthreads();
    for (int level = 0; level < stack.levels; ++level) {
      search_level<rows, cosine, few>(stack.state_of(stack.book_of_level[level], head), tile);
      take_codes<rows>(stack, tile, head, first, level);
      __syncthreads();
    }
    end_tile<rows>(stack, tile, head, first);
    __syncthreads();  // before the rows of the next tile
  }
}

template <bool cosine>
auto kernel_of(int rows, bool few) {
  return few          ? encode_stack<kRowsOfFew, cosine, true>
         : rows == 64 ? encode_stack<64, cosine, false>
         : rows == 32 ? encode_stack<32, cosine, false>
                      : encode_stack<16, cosine, false>;
}

}  // namespace

int residual_stack_rows(const ResidualStackTask& task, const Queue& queue) {
  if (task.levels < 1 || task.levels > kMostStackLevels) return 0;
  const auto most = static_cast<size_t>(shared_memory_of(queue));
  const int64_t depth = rounded_up(task.dim, kTileDepth);
  const bool few = task.dim <= kFewDimensions;
  int rows = few ? kRowsOfFew : 64;
  while (rows >= 16 && StackTile::bytes(rows, task.dim, depth) > most) rows /= 2;
  if (rows < 16) return 0;
  if (few) return rows == kRowsOfFew ? rows : 0;
  // Small tiles are better than idle multiprocessors.
  const int64_t processors = processors_of(queue);
  while (rows > 16 && (task.tokens + rows - 1) / rows * task.heads < processors) rows /= 2;
  return rows;
}

size_t residual_stack_workspace(const ResidualStackTask& task) {
  Cutter cutter(nullptr);
  const ResidualStack stack(task, cutter);
  return cutter.used();
}

Error residual_stack(const ResidualStackTask& task, int rows, void* workspace, const Queue& queue) {
  Cutter cutter(workspace);
  const ResidualStack stack(task, cutter);
  const int64_t books = stack.book_count * stack.heads;
  Steps steps(queue);
  const auto* end = reinterpret_cast<char*>(stack.centers + books * stack.dim);
  steps.add(fill_bytes(queue, stack.facts, 0,
                       static_cast<size_t>(end - reinterpret_cast<char*>(stack.facts))));
  if (stack.cosine)
    steps.run(make_unit_codes, blocks_for(stack.padded_codes(), kPrepareThreads), kPrepareThreads,
              0, stack);
  const bool few = stack.dim <= kFewDimensions;
  prepare_codes(steps, stack, {books, stack.padded_codes(), stack.dim, stack.cosine},
                [&](unsigned blocks) {
                  if (!few)
                    steps.run(round_codes<ResidualStack>, blocks, kPrepareThreads, 0, stack);
                });
  if (few)
    steps.run(center_codes, blocks_of_warps(stack.padded_codes()), kPrepareThreads, 0, stack);
  const int64_t tiles = (stack.tokens + rows - 1) / rows * stack.heads;
  const auto walk = stack.cosine ? kernel_of<true>(rows, few) : kernel_of<false>(rows, few);
  steps.run(walk, blocks_for(tiles, 1), kStackThreads,
            StackTile::bytes(rows, stack.dim, stack.depth), stack);
  return steps.error();
}

}  // namespace torchvq::kernels::TORCHVQ_CUDA_NAMESPACE
