#include <torchvq/ops/count_codes_.h>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "ops/count_codes_.h"

namespace torchvq {

namespace detail {

void check_count_codes_(at::TensorList counts, at::TensorList indices) {
  constexpr auto op = "count_codes_";
  TORCH_CHECK_VALUE(indices.size() <= counts.size(), op, ": expected indices to hold at most ",
                    counts.size(), " tensors (those of counts), but got ", indices.size());
  for (const auto& tensor : counts) {
    check_dtype(op, "counts", tensor, at::kLong);
    check_rank(op, "counts", tensor, 2, "(H, K)");
    TORCH_CHECK_VALUE(tensor.is_contiguous(), op,
                      ": expected counts to be contiguous, but got strides ", tensor.sym_strides());
  }
  for (size_t level = 0; level < indices.size(); ++level) {
    check_dtype(op, "indices", indices[level], at::kLong);
    check_rank(op, "indices", indices[level], 2, "(H, N)");
    check_size(op, "indices", indices[level], 0, counts[level].sym_size(0), "heads of counts");
    check_same_device(op, "counts", counts[level], "indices", indices[level]);
  }
}

}  // namespace detail

namespace ops {

void count_codes_(at::TensorList counts, at::TensorList indices) {
  static auto op = detail::op_handle<void(at::TensorList, at::TensorList)>("torchvq::count_codes_");
  op.call(counts, indices);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("count_codes_(Tensor(a!)[] counts, Tensor[] indices) -> ()");
}
