#include "distributed/candidates.h"

#include <ATen/ops/cat.h>

#include "distributed/bytes.h"

namespace torchvq::distributed {
namespace {

/// Extracts a tensor shaped like `model` from the bytes of each rank (W, B), and
/// joins the ranks on axis 1.
at::Tensor side_by_side(const at::Tensor& bytes, int64_t& begin, const at::Tensor& model) {
  const auto size = static_cast<int64_t>(model.nbytes());
  // A copy, because a block may not be aligned for its dtype.
  const auto values =
      bytes.narrow(1, begin, size).clone(at::MemoryFormat::Contiguous).view(model.scalar_type());
  begin += size;
  auto shape = model.sizes().vec();
  shape.insert(shape.begin(), bytes.size(0));
  auto merged = model.sizes().vec();
  merged[1] *= bytes.size(0);
  return values.view(shape).transpose(0, 1).reshape(merged);
}

}  // namespace

std::vector<Candidates> gather_candidates(const Group& group, const std::vector<Candidates>& own) {
  if (group.alone()) return own;
  std::vector<at::Tensor> parts;
  for (const auto& set : own) {
    parts.push_back(as_bytes(set.keys));
    parts.push_back(as_bytes(set.rows));
  }
  const auto all = group.all_gather(at::cat(parts), "candidates for dead codes");
  std::vector<Candidates> merged;
  int64_t begin = 0;
  for (const auto& set : own) {
    auto keys = side_by_side(all, begin, set.keys);
    auto rows = side_by_side(all, begin, set.rows);
    merged.push_back({std::move(keys), std::move(rows)});
  }
  return merged;
}

}  // namespace torchvq::distributed
