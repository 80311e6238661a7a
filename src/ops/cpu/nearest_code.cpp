#include "ops/nearest_code.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "kernels/cpu/nearest_code_rounded.h"
#include "kernels/cpu/nearest_code_search.h"
#include "kernels/cpu/nearest_code_unpacked.h"
#include "ops/cpu/in_parallel.h"

namespace torchvq {
namespace {

using detail::NearestCodeProblem;

constexpr int64_t kPadding = -2;  // index of a token that was not searched, until finish_rows

/// Rows per task, enough to outweigh the tens of microseconds that starting a task takes.
int64_t row_grain(const NearestCodeProblem& problem) {
  const double products = static_cast<double>(problem.size) * static_cast<double>(problem.dim);
  return std::max<int64_t>(1, static_cast<int64_t>(0x1p18 / products));
}

template <typename Search, typename T>
void search_head(const Search& search, const NearestCodeProblem& problem, const T* x,
                 int64_t* indices) {
  at::parallel_for(0, problem.tokens, row_grain(problem), [&](int64_t begin, int64_t end) {
    search.search(x + begin * problem.dim, end - begin, indices + begin * problem.k);
  });
}

template <typename T>
struct HeadData {
  HeadData(const NearestCodeProblem& problem, int64_t head)
      : x(problem.x.const_data_ptr<T>() + head * problem.tokens * problem.dim),
        codebook(problem.head_codebook(head).template const_data_ptr<T>()),
        bias(problem.bias.defined() ? problem.head_bias(head).template const_data_ptr<T>()
                                    : nullptr) {}

  const T* x;
  const T* codebook;
  const T* bias;
};

void find_indices(const NearestCodeProblem& problem, int64_t head, int64_t* indices) {
  const auto level = kernels::cpu_level();
  if (problem.dtype == at::kDouble) {
    const HeadData<double> data(problem, head);
    const kernels::NearestCodeWideTask task = {data.codebook, data.bias,      problem.size,
                                               problem.dim,   problem.cosine, problem.k,
                                               problem.tokens};
    if (kernels::worth_unpacked(task) &&
        kernels::nearest_code_unpacked(task, level, detail::in_parallel, data.x, indices)) {
      return;
    }
    search_head(kernels::NearestCodeSearchOf<double>(task, level, detail::in_parallel), problem,
                data.x, indices);
  } else {
    const HeadData<float> data(problem, head);
    const kernels::NearestCodeTask task = {data.codebook,  data.bias, problem.size,  problem.dim,
                                           problem.cosine, problem.k, problem.tokens};
    if (kernels::worth_rounded(task, level) &&
        kernels::nearest_code_rounded(task, level, detail::in_parallel, data.x, indices)) {
      return;
    }
    if (kernels::worth_unpacked(task) &&
        kernels::nearest_code_unpacked(task, level, detail::in_parallel, data.x, indices))
      return;
    search_head(kernels::ManyRowsSearch(task, level, detail::in_parallel), problem, data.x,
                indices);
  }
}

/// As find_indices, for real tokens; kPadding for the others, which are not searched.
void find_real_indices(const NearestCodeProblem& problem, int64_t head, int64_t* indices) {
  const auto* const mask = problem.mask.const_data_ptr<bool>() + head * problem.tokens;
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < problem.tokens; ++row) {
    if (mask[row]) rows.push_back(row);
  }
  if (static_cast<int64_t>(rows.size()) == problem.tokens) {
    find_indices(problem, head, indices);
    return;
  }
  std::fill_n(indices, problem.tokens * problem.k, kPadding);
  if (rows.empty()) return;
  const auto real = problem.of_rows(head, rows);
  std::vector<int64_t> found(rows.size() * static_cast<size_t>(problem.k));
  find_indices(real, 0, found.data());
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(found.data() + static_cast<int64_t>(i) * problem.k, problem.k,
                indices + rows[i] * problem.k);
  }
}

template <typename T>
double distance(const T* x, const T* code, int64_t dim, bool cosine) {
  double sum = 0, x_square = 0, code_square = 0;
  for (int64_t d = 0; d < dim; ++d) {
    const double a = x[d], b = code[d];
    if (cosine) {
      sum += a * b;
      x_square += a * a;
      code_square += b * b;
    } else {
      sum += (a - b) * (a - b);
    }
  }
  if (!cosine) return sum;
  const double norms = std::sqrt(x_square) * std::sqrt(code_square);
  return norms == 0 ? 1.0 : 1.0 - sum / norms;
}

/// Completes rows that the search left at -1: their indices become 0, 1, .. and their outputs NaN;
/// padding gets index -1 and outputs of 0; fills in codes and distances if requested.
template <typename T>
void finish_rows(const NearestCodeProblem& problem, int64_t head, int64_t* indices, T* codes,
                 T* distances) {
  const HeadData<T> data(problem, head);
  const int64_t k = problem.k, dim = problem.dim;
  constexpr T nan = std::numeric_limits<T>::quiet_NaN();
  const auto finish = [&](int64_t row, int64_t slot) {
    const int64_t place = row * k + slot;
    if (indices[place] == kPadding) {
      indices[place] = -1;
      if (codes) std::fill_n(codes + place * dim, dim, T(0));
      if (distances) distances[place] = T(0);
      return;
    }
    const bool absent = indices[place] < 0;
    if (absent) indices[place] = slot;
    const T* code = data.codebook + indices[place] * dim;
    if (codes && absent) std::fill_n(codes + place * dim, dim, nan);
    if (codes && !absent) std::copy_n(code, dim, codes + place * dim);
    if (!distances) return;
    const double bias = data.bias ? data.bias[indices[place]] : 0.0;
    distances[place] =
        absent ? nan
               : static_cast<T>(distance(data.x + row * dim, code, dim, problem.cosine) + bias);
  };
  at::parallel_for(0, problem.tokens, 1 + 32768 / (dim * k), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t slot = 0; slot < k; ++slot) finish(row, slot);
    }
  });
}

template <typename T>
void search_heads(const NearestCodeProblem& problem, at::Tensor& indices, at::Tensor& codes,
                  at::Tensor& distances) {
  const int64_t places = problem.tokens * problem.k;
  T* const all_codes = codes.numel() > 0 ? codes.mutable_data_ptr<T>() : nullptr;
  T* const all_distances = distances.numel() > 0 ? distances.mutable_data_ptr<T>() : nullptr;
  for (int64_t head = 0; head < problem.heads; ++head) {
    int64_t* const head_indices = indices.mutable_data_ptr<int64_t>() + head * places;
    if (problem.mask.defined()) {
      find_real_indices(problem, head, head_indices);
    } else {
      find_indices(problem, head, head_indices);
    }
    finish_rows<T>(problem, head, head_indices,
                   all_codes ? all_codes + head * places * problem.dim : nullptr,
                   all_distances ? all_distances + head * places : nullptr);
  }
}

detail::NearestCodeTensors nearest_code(const at::Tensor& x, const at::Tensor& codebook,
                                        std::string_view metric,
                                        const std::optional<at::Tensor>& bias,
                                        std::optional<int64_t> topk, bool return_codes,
                                        bool return_distances,
                                        const std::optional<at::Tensor>& mask) {
  const NearestCodeProblem problem(x, codebook, metric, bias, topk, mask);
  const auto options = problem.x.options();
  const auto shape = detail::nearest_code_sizes(x, topk);
  auto codes_shape = shape;
  codes_shape.push_back(problem.dim);
  auto indices = at::empty(shape, options.dtype(at::kLong));
  auto codes = at::empty(return_codes ? codes_shape : std::vector<int64_t>{0}, options);
  auto distances = at::empty(return_distances ? shape : std::vector<int64_t>{0}, options);
  if (indices.numel() == 0) return {indices, codes, distances};
  if (problem.dtype == at::kDouble) {
    search_heads<double>(problem, indices, codes, distances);
  } else {
    search_heads<float>(problem, indices, codes, distances);
  }
  return {indices, codes, distances};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("nearest_code", nearest_code); }

}  // namespace torchvq
