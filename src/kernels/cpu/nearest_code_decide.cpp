#include "kernels/cpu/nearest_code_decide.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace torchvq::kernels {

bool all_finite(const float* values, int64_t count) {
  return std::all_of(values, values + count, [](float value) { return std::isfinite(value); });
}

double squared_norm(const float* values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(values[i]) * values[i];
  return sum;
}

double largest_bias(const NearestCodeTask& task) {
  double largest = 0;
  for (int64_t k = 0; task.bias && k < task.size; ++k) {
    if (std::isfinite(task.bias[k]))
      largest = std::max(largest, std::abs(static_cast<double>(task.bias[k])));
  }
  return largest;
}

void NearestCodeDecision::make_unit(const float** rows, size_t count, size_t first) {
  if (!task_.cosine) return;
  float* units[kTogether] = {};
  for (size_t i = 0; i < count; ++i) {
    units[i] = unit_.data() + static_cast<int64_t>(first + i) * task_.dim;
  }
  exact_.unit_rows(rows, static_cast<int64_t>(count), task_.dim, units);
  std::copy(units, units + count, rows);
}

size_t NearestCodeDecision::score(const float* x, const std::vector<int32_t>& candidates,
                                  size_t begin, double* scores) {
  const size_t count = std::min(kTogether, candidates.size() - begin);
  const float* codes[kTogether] = {};
  for (size_t i = 0; i < count; ++i) {
    codes[i] = task_.codebook + candidates[begin + i] * task_.dim;
  }
  make_unit(codes, count, 1);
  exact_.pair_scores(x, task_.dim, codes, static_cast<int64_t>(count), task_.cosine, scores);
  for (size_t i = 0; i < count; ++i) scores[i] += task_.bias_of(candidates[begin + i]);
  return count;
}

void NearestCodeDecision::decide(const float* x, const std::vector<int32_t>& candidates,
                                 const std::vector<int32_t>& excluded, int64_t* indices) {
  make_unit(&x, 1, 0);
  double scores[kTogether];
  if (task_.k == 1 && candidates.size() <= kTogether && !candidates.empty()) {
    // The most common case. Candidates come in order of index, so the first of equal scores wins.
    const size_t count = score(x, candidates, 0, scores);
    indices[0] = candidates[std::min_element(scores, scores + count) - scores];
    return;
  }
  rivals_.clear();
  for (size_t begin = 0; begin < candidates.size(); begin += kTogether) {
    const size_t count = score(x, candidates, begin, scores);
    for (size_t i = 0; i < count; ++i) rivals_.emplace_back(scores[i], candidates[begin + i]);
  }
  for (size_t i = 0; static_cast<int64_t>(rivals_.size()) < task_.k; ++i)
    rivals_.emplace_back(HUGE_VAL, excluded[i]);
  std::partial_sort(rivals_.begin(), rivals_.begin() + task_.k, rivals_.end());
  for (int64_t i = 0; i < task_.k; ++i) indices[i] = rivals_[i].second;
}

float KthLargest::find(const NearestCodeScan& scan, const float* values, int64_t count, int64_t k) {
  constexpr int64_t kStep = 512;
  if (k == 1) return scan.largest(values, count);
  places_.resize(kStep);
  heap_.assign(static_cast<size_t>(k), -HUGE_VALF);  // the k largest so far, the smallest on top
  const std::greater<> greater;
  for (int64_t begin = 0; begin < count; begin += kStep) {
    const int64_t found = scan.at_least(values + begin, std::min(kStep, count - begin),
                                        heap_.front(), places_.data());
    for (int64_t i = 0; i < found; ++i) {
      const float value = values[begin + places_[i]];
      if (value <= heap_.front()) continue;
      std::pop_heap(heap_.begin(), heap_.end(), greater);
      heap_.back() = value;
      std::push_heap(heap_.begin(), heap_.end(), greater);
    }
  }
  return heap_.front();
}

}  // namespace torchvq::kernels
