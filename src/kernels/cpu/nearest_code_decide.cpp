#include "kernels/cpu/nearest_code_decide.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace torchvq::kernels {

template <typename T>
void NearestCodeDecisionOf<T>::make_unit(const T** rows, size_t count, size_t first) {
  if (!task_.cosine) return;
  T* units[kTogether] = {};
  for (size_t i = 0; i < count; ++i) {
    units[i] = unit_.data() + static_cast<int64_t>(first + i) * task_.dim;
  }
  exact_.unit_rows(rows, static_cast<int64_t>(count), task_.dim, units);
  std::copy(units, units + count, rows);
}

template <typename T>
size_t NearestCodeDecisionOf<T>::score(const T* x, const std::vector<int32_t>& candidates,
                                       size_t begin, double* scores) {
  const size_t count = std::min(kTogether, candidates.size() - begin);
  const T* codes[kTogether] = {};
  for (size_t i = 0; i < count; ++i) {
    codes[i] = task_.codebook + candidates[begin + i] * task_.dim;
  }
  make_unit(codes, count, 1);
  exact_.pair_scores(x, task_.dim, codes, static_cast<int64_t>(count), task_.cosine, scores);
  for (size_t i = 0; i < count; ++i) scores[i] += task_.bias_of(candidates[begin + i]);
  return count;
}

template <typename T>
void NearestCodeDecisionOf<T>::decide(const T* x, const std::vector<int32_t>& candidates,
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

template class NearestCodeDecisionOf<float>;
template class NearestCodeDecisionOf<double>;

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
