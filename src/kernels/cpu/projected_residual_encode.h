// Greedy encoding of a range of rows by projected levels: a tile of rows passes through all levels
// while it is in cache. Serial; the levels are const and shared by threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/projected_level.h"

namespace torchvq::kernels {

/// A tensor indexed by (clip, time, feature), with any strides.
template <typename T>
struct Clips {
  T* data = nullptr;
  int64_t clip = 0, time = 0, feature = 0;  ///< strides

  T* at(int64_t n, int64_t t) const { return data + n * clip + t * time; }
};

template <typename T>
struct ProjectedResidualOutput {
  Clips<T> quantized, latents, errors;
  Clips<int64_t> indices;
};

/// Level has `search(const T* compared, int64_t count, int64_t* indices) const`, which writes -1
/// for a row that is not finite, `project_in(rows, count, latents)`,
/// `take_part(codes, count, rows, totals)` and `codebook`.
template <typename T, typename Level>
class ProjectedResidualEncode {
 public:
  ProjectedResidualEncode(const std::vector<std::unique_ptr<Level>>& levels,
                          const ProjectedShape& shape, bool cosine, int64_t tokens, CpuLevel level)
      : levels_(levels),
        shape_(shape),
        cosine_(cosine),
        tokens_(tokens),
        kernel_(projected_level<T>(level)),
        stride_(row_stride(shape.features)),
        depth_(padded_dim(shape.dim)),
        tile_(rows_of_tile(stride_)) {}

  /// Encodes rows [begin, end) of x, row b * tokens + t being time t of clip b.
  void encode(const Clips<const T>& x, int64_t begin, int64_t end,
              const ProjectedResidualOutput<T>& to) {
    const int64_t most = std::min(tile_, end - begin);
    rows_ = AlignedBuffer<T>(most * stride_);
    totals_ = AlignedBuffer<T>(most * stride_);
    latents_ = AlignedBuffer<T>(most * shape_.dim);
    units_ = AlignedBuffer<T>(most * shape_.dim);
    codes_ = AlignedBuffer<T>(most * depth_);
    found_.resize(static_cast<size_t>(most));
    for (; begin < end; begin += most) encode_tile(x, begin, std::min(most, end - begin), to);
  }

 private:
  // Rows, and as many bytes of sums, fit the second-level cache beside the weights of a level.
  static constexpr int64_t kTileBytes = 200 << 10, kFewestRows = 6, kMostRows = 96;

  /// If large enough, a multiple of the 16 columns and 4 or 3 rows that kernels process together.
  static int64_t rows_of_tile(int64_t stride) {
    const int64_t rows = kTileBytes / static_cast<int64_t>(sizeof(T)) / stride;
    const int64_t step = rows >= 48 ? 48 : rows >= 16 ? 16 : 1;
    return std::clamp(rows / step * step, kFewestRows, kMostRows);
  }

  void encode_tile(const Clips<const T>& x, int64_t first, int64_t count,
                   const ProjectedResidualOutput<T>& to) {
    for_each_run(first, count, [&](int64_t b, int64_t t, int64_t at, int64_t run) {
      load(x.at(b, t), x, run, rows_.data() + at * stride_);
    });
    std::fill_n(totals_.data(), count * stride_, T(0));
    std::fill_n(codes_.data(), count * depth_, T(0));
    for (size_t n = 0; n < levels_.size(); ++n) {
      levels_[n]->project_in(rows_.data(), count, latents_.data());
      find(*levels_[n], count);
      take(n, first, count, to);
      levels_[n]->take_part(codes_.data(), count, rows_.data(), totals_.data());
    }
    for_each_run(first, count, [&](int64_t b, int64_t t, int64_t at, int64_t run) {
      store(totals_.data() + at * stride_, run, to.quantized, to.quantized.at(b, t));
    });
  }

  /// Calls body(clip, time, row of the tile, rows) for each run of rows that lies in one clip.
  template <typename Body>
  void for_each_run(int64_t first, int64_t count, const Body& body) const {
    for (int64_t at = 0; at < count;) {
      const int64_t b = (first + at) / tokens_, t = (first + at) % tokens_;
      const int64_t run = std::min(count - at, tokens_ - t);
      body(b, t, at, run);
      at += run;
    }
  }

  void load(const T* from, const Clips<const T>& layout, int64_t run, T* rows) const {
    if (layout.time == 1 && layout.feature != 1) {
      kernel_.load_columns(shape_, from, layout.feature, run, rows);
      return;
    }
    for (int64_t r = 0; r < run; ++r) {
      T* const row = rows + r * stride_;
      const T* const values = from + r * layout.time;
      for (int64_t c = 0; c < shape_.features; ++c) row[c] = values[c * layout.feature];
      std::fill(row + shape_.features, row + stride_, T(0));
    }
  }

  void store(const T* rows, int64_t run, const Clips<T>& layout, T* to) const {
    if (layout.time == 1 && layout.feature != 1) {
      kernel_.store_columns(shape_, rows, run, layout.feature, to);
      return;
    }
    for (int64_t r = 0; r < run; ++r) {
      const T* const row = rows + r * stride_;
      T* const values = to + r * layout.time;
      for (int64_t c = 0; c < shape_.features; ++c) values[c * layout.feature] = row[c];
    }
  }

  void find(const Level& level, int64_t count) {
    if (cosine_) kernel_.unit_vectors(latents_.data(), count, shape_.dim, units_.data());
    level.search(cosine_ ? units_.data() : latents_.data(), count, found_.data());
  }

  /// Writes the indices found by level n, and the codes as the
  /// straight-through formula rounds them.
  void take(size_t n, int64_t first, int64_t count, const ProjectedResidualOutput<T>& to) {
    const auto level = static_cast<int64_t>(n);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t b = (first + i) / tokens_, t = (first + i) % tokens_;
      const int64_t index = std::max<int64_t>(found_[static_cast<size_t>(i)], 0);
      const T* const latent = latents_.data() + i * shape_.dim;
      const T* const code = levels_[n]->codebook + index * shape_.dim;
      T* const straight = codes_.data() + i * depth_;
      T* const kept = to.latents.at(b, t) + level * shape_.dim * to.latents.feature;
      T error = 0;
      for (int64_t d = 0; d < shape_.dim; ++d) {
        const T step = code[d] - latent[d];
        straight[d] = latent[d] + step;
        error += step * step;
        kept[d * to.latents.feature] = latent[d];
      }
      to.errors.at(b, t)[level * to.errors.feature] = error;
      to.indices.at(b, t)[level * to.indices.feature] = index;
    }
  }

  const std::vector<std::unique_ptr<Level>>& levels_;
  ProjectedShape shape_;
  bool cosine_;
  int64_t tokens_;
  ProjectedLevelKernel<T> kernel_;
  int64_t stride_, depth_, tile_;
  AlignedBuffer<T> rows_, totals_;    ///< (tile, stride)
  AlignedBuffer<T> latents_, units_;  ///< (tile, dim)
  AlignedBuffer<T> codes_;            ///< (tile, depth)
  std::vector<int64_t> found_;
};

}  // namespace torchvq::kernels
