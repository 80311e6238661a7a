// FarVectors of several processes, in a separate file because the rest needs no process group.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>

#include <bit>

#include "distributed/group.h"
#include "fit/far_vectors.h"

namespace torchvq::fit {

void FarVectors::gather(const distributed::Group& group, int64_t dim) {
  if (group.alone()) return;
  // Per vector [row, distance, elements]; floats travel as the integers of their bits.
  const auto most = static_cast<int64_t>(most_);
  auto own = at::full({most, dim + 2}, -1, at::kLong);
  for (size_t i = 0; i < kept_.size(); ++i) {
    auto line = own.select(0, static_cast<int64_t>(i));
    line.select(0, 0).fill_(kept_[i].row);
    line.select(0, 1).fill_(std::bit_cast<int32_t>(kept_[i].distance));
    line.narrow(0, 2, dim).copy_(kept_[i].vector.view(at::kInt));
  }
  const auto all = group.all_gather(own, "the vectors farthest from their codes").flatten(0, 1);
  kept_.clear();
  for (int64_t i = 0; i < all.size(0); ++i) {
    const auto line = all.select(0, i);
    const auto row = line[0].item<int64_t>();
    if (row < 0) continue;
    const auto distance = std::bit_cast<float>(line[1].to(at::kInt).item<int32_t>());
    kept_.push_back({distance, row, line.narrow(0, 2, dim).to(at::kInt).view(at::kFloat)});
  }
  keep_farthest();
}

}  // namespace torchvq::fit
