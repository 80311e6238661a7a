#include "fit/far_vectors.h"

#include <ATen/ops/equal.h>

#include <algorithm>

namespace torchvq::fit {

void FarVectors::add(const at::Tensor& x, const at::Tensor& distances, int64_t first) {
  const auto* distance = distances.const_data_ptr<float>();
  std::vector<int64_t> rows;
  const bool full = kept_.size() == most_;
  for (int64_t row = 0; row < x.size(0); ++row) {
    // Later rows lose ties, so only farther ones can enter a full list.
    if (distance[row] > 0 && (!full || distance[row] > kept_.back().distance)) rows.push_back(row);
  }
  const auto farther = [&](int64_t a, int64_t b) {
    return distance[a] != distance[b] ? distance[a] > distance[b] : a < b;
  };
  const auto count = std::min(most_, rows.size());
  std::partial_sort(rows.begin(), rows.begin() + static_cast<int64_t>(count), rows.end(), farther);
  for (size_t i = 0; i < count; ++i) {
    kept_.push_back({distance[rows[i]], first + rows[i], x.select(0, rows[i]).clone()});
  }
  keep_farthest();
}

void FarVectors::keep_farthest() {
  std::sort(kept_.begin(), kept_.end());
  if (kept_.size() > most_) kept_.erase(kept_.begin() + static_cast<int64_t>(most_), kept_.end());
}

std::vector<at::Tensor> FarVectors::distinct() const {
  std::vector<at::Tensor> vectors;
  for (size_t i = 0; i < kept_.size(); ++i) {
    // Equal vectors have equal distances, so a repeated vector is among those of the same distance.
    bool repeated = false;
    for (size_t j = i; j > 0 && kept_[j - 1].distance == kept_[i].distance && !repeated; --j) {
      repeated = at::equal(kept_[j - 1].vector, kept_[i].vector);
    }
    if (!repeated) vectors.push_back(kept_[i].vector);
  }
  return vectors;
}

}  // namespace torchvq::fit
