#include "ops/residual_encode.h"

#include <algorithm>
#include <memory>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include "kernels/cpu/nearest_code_prepared.h"
#include "kernels/cpu/nearest_code_rounded.h"
#include "kernels/cpu/nearest_code_search.h"
#include "kernels/cpu/nearest_code_unpacked.h"
#include "kernels/cpu/residual_encode.h"
#include "ops/cpu/in_parallel.h"

namespace torchvq {
namespace {

using detail::ResidualEncodeProblem;

kernels::NearestCodeTask float_task(const ResidualEncodeProblem& problem, const float* codes,
                                    int64_t size) {
  return {codes, nullptr, size, problem.dim, problem.cosine, 1, problem.tokens};
}

/// Searches unpacked codes: for few rows, where packing costs more than it saves.
class UnpackedSearch {
 public:
  UnpackedSearch(const ResidualEncodeProblem& problem, const float* codes, int64_t size)
      : task_(float_task(problem, codes, size)) {}

  void use(const uint8_t* prepared) { prepared_ = {prepared, task_.size, task_.dim}; }

  void search(const float* x, int64_t count, int64_t* indices) const {
    auto task = task_;
    task.rows = count;
    const auto level = kernels::cpu_level();
    const bool prepared = kernels::has_prepared(task, prepared_);
    if (prepared && kernels::nearest_code_prepared(task, {task, prepared_}, level,
                                                   detail::in_parallel, x, indices)) {
      return;
    }
    // If prepared 8-bit codes have just failed, rounding the codes to 8 bits again would fail too.
    if (!prepared && kernels::worth_rounded(task, level) &&
        kernels::nearest_code_rounded(task, level, detail::in_parallel, x, indices)) {
      return;
    }
    if (kernels::nearest_code_unpacked(task, level, detail::in_parallel, x, indices)) return;
    kernels::NearestCodeSearch(task, level, detail::in_parallel).search(x, count, indices);
  }

 private:
  kernels::NearestCodeTask task_;
  kernels::PreparedCodes prepared_;
};

class PackedSearch : public kernels::ManyRowsSearch {
 public:
  PackedSearch(const ResidualEncodeProblem& problem, const float* codes, int64_t size)
      : ManyRowsSearch(float_task(problem, codes, size), kernels::cpu_level(),
                       detail::in_parallel) {}
};

class WideSearch : public kernels::NearestCodeSearchOf<double> {
 public:
  WideSearch(const ResidualEncodeProblem& problem, const double* codes, int64_t size)
      : NearestCodeSearchOf({codes, nullptr, size, problem.dim, problem.cosine, 1, problem.tokens},
                            kernels::cpu_level(), detail::in_parallel) {}
};

bool worth_unpacked(const ResidualEncodeProblem& problem) {
  return problem.x.scalar_type() == at::kFloat &&
         kernels::worth_unpacked(float_task(problem, nullptr, 0));
}

/// Null if there is none, or if its address is not aligned for floats.
const uint8_t* prepared_of(const ResidualEncodeProblem& problem, size_t level, int64_t head) {
  if (problem.prepared.empty() || problem.prepared[level].numel() == 0) return nullptr;
  const auto& prepared = problem.prepared[level];
  const bool own = prepared.dim() == 2 && prepared.size(0) > 1;
  const auto* const bytes =
      prepared.const_data_ptr<uint8_t>() + (own ? head * prepared.size(1) : 0);
  return reinterpret_cast<uintptr_t>(bytes) % alignof(float) == 0 ? bytes : nullptr;
}

/// The levels of one head. Each codebook is packed once, even if several levels share it.
template <typename T, typename Search>
class Levels {
 public:
  Levels(const ResidualEncodeProblem& problem, int64_t head) {
    for (size_t n = 0; n < problem.codebooks.size(); ++n) {
      const auto& codebook = problem.codebooks[n];
      const int64_t size = codebook.size(-2);
      const T* const codes = codebook.const_data_ptr<T>() + head * size * problem.dim;
      // Compares sizes too, because a slice of a codebook may begin at the same address.
      const auto same = std::find_if(searches_.begin(), searches_.end(), [&](const auto& other) {
        return other.codes == codes && other.size == size;
      });
      if (same != searches_.end()) {
        levels.push_back({codes, same->search.get()});
      } else {
        searches_.push_back({codes, size, std::make_unique<Search>(problem, codes, size)});
        if constexpr (std::is_same_v<Search, UnpackedSearch>) {
          searches_.back().search->use(prepared_of(problem, n, head));
        }
        levels.push_back({codes, searches_.back().search.get()});
      }
    }
  }

  std::vector<kernels::ResidualEncodeLevel<T, Search>> levels;

 private:
  struct Packed {
    const T* codes;
    int64_t size;
    std::unique_ptr<Search> search;
  };
  std::vector<Packed> searches_;
};

/// Rows per task, enough to outweigh the tens of microseconds that starting a task takes.
int64_t row_grain(const ResidualEncodeProblem& problem) {
  double products = 0;
  for (const auto& codebook : problem.codebooks) {
    products += static_cast<double>(codebook.size(-2)) * static_cast<double>(problem.dim);
  }
  return std::max<int64_t>(1, static_cast<int64_t>(0x1p18 / products));
}

/// Number of rows that are searched together: all of them if each search reads the codes again.
template <typename Search>
int64_t most_rows(const ResidualEncodeProblem& problem) {
  if constexpr (std::is_same_v<Search, UnpackedSearch>) return problem.tokens;
  return std::clamp<int64_t>(kernels::kResidualBlockValues / problem.dim, 16, 192);
}

template <typename T, typename Search>
void encode_heads(const ResidualEncodeProblem& problem, at::Tensor& quantized,
                  at::Tensor& indices) {
  const int64_t tokens = problem.tokens, dim = problem.dim, levels = problem.levels;
  for (int64_t head = 0; head < problem.heads; ++head) {
    const Levels<T, Search> searches(problem, head);
    const T* const x = problem.x.const_data_ptr<T>() + head * tokens * dim;
    const bool* const mask =
        problem.mask.defined() ? problem.mask.const_data_ptr<bool>() + head * tokens : nullptr;
    const kernels::ResidualEncodeOutput<T> to = {
        quantized.mutable_data_ptr<T>() + head * tokens * dim,
        indices.mutable_data_ptr<int64_t>() + head * tokens * levels, levels};
    const auto encode = [&](int64_t begin, int64_t end) {
      kernels::ResidualEncode<T, Search>(searches.levels, dim, most_rows<Search>(problem))
          .encode(x, mask, begin, end, to);
    };
    if constexpr (std::is_same_v<Search, UnpackedSearch>) {
      encode(0, tokens);
    } else {
      at::parallel_for(0, tokens, row_grain(problem), encode);
    }
  }
}

detail::ResidualEncodeTensors residual_encode(const at::Tensor& x, at::TensorList codebooks,
                                              std::string_view metric,
                                              const std::optional<at::Tensor>& depth,
                                              const std::optional<at::Tensor>& mask,
                                              std::optional<at::TensorList> prepared) {
  const ResidualEncodeProblem problem(x, codebooks, metric, depth, mask, prepared);
  auto quantized = at::empty(problem.x.sizes(), problem.x.options());
  auto indices = at::full({problem.heads, problem.tokens, problem.levels}, -1,
                          problem.x.options().dtype(at::kLong));
  if (indices.numel() == 0) return problem.of_all_heads(quantized, indices);
  if (problem.x.scalar_type() == at::kDouble) {
    encode_heads<double, WideSearch>(problem, quantized, indices);
  } else if (worth_unpacked(problem)) {
    encode_heads<float, UnpackedSearch>(problem, quantized, indices);
  } else {
    encode_heads<float, PackedSearch>(problem, quantized, indices);
  }
  return problem.of_all_heads(quantized, indices);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("residual_encode", residual_encode); }

}  // namespace torchvq
