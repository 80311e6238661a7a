#include <torchvq/ops/replace_with_candidates_.h>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/op_handle.h"
#include "detail/random_tensor.h"
#include "ops/replace_with_candidates_.h"

namespace torchvq {

namespace detail {

namespace {

constexpr auto kReplaceWithCandidates = "replace_with_candidates_";

void check_one(const DeadCodeState& state, const at::Tensor& keys, const at::Tensor& rows,
               const at::Tensor& counts, const at::Tensor& rng,
               const DeadCodeArguments& arguments) {
  constexpr auto op = kReplaceWithCandidates;
  check_dead_code_state(op, state, counts, arguments);
  check_rng(op, rng);
  check_dtype(op, "keys", keys, at::kLong);
  TORCH_CHECK_TYPE(rows.scalar_type() == at::kFloat || rows.scalar_type() == at::kDouble, op,
                   ": expected rows to be float32 or float64, but got ", rows.scalar_type());
  check_rank(op, "keys", keys, 2, "(H, C)");
  check_rank(op, "rows", rows, 3, "(H, C, D)");
  TORCH_CHECK_VALUE(keys.sym_size(1) >= 1, op,
                    ": expected keys to hold at least 1 candidate, but got shape ",
                    keys.sym_sizes());
  check_size(op, "keys", keys, 0, state.embed.sym_size(0), "heads of embed");
  check_size(op, "rows", rows, 0, state.embed.sym_size(0), "heads of embed");
  check_size(op, "rows", rows, 1, keys.sym_size(1), "candidates of keys");
  check_size(op, "rows", rows, 2, state.embed.sym_size(2), "dimensions of embed");
  check_same_device(op, "embed", state.embed, "keys", keys);
  check_same_device(op, "embed", state.embed, "rows", rows);
  check_same_device(op, "embed", state.embed, "rng", rng);
}

}  // namespace

void check_replace_with_candidates_(const CodebooksWithCandidates& codebooks,
                                    const DeadCodeArguments& arguments) {
  check_lists_of_codebooks(kReplaceWithCandidates, codebooks.embed,
                           {{"embed_avg", codebooks.embed_avg},
                            {"cluster_size", codebooks.cluster_size},
                            {"keys", codebooks.keys},
                            {"rows", codebooks.rows},
                            {"counts", codebooks.counts},
                            {"rng", codebooks.rng}});
  for (size_t i = 0; i < codebooks.size(); ++i) {
    check_one(codebooks.state(i), codebooks.keys[i], codebooks.rows[i], codebooks.counts[i],
              codebooks.rng[i], arguments);
  }
}

}  // namespace detail

namespace ops {

at::Tensor replace_with_candidates_(at::TensorList embed, at::TensorList embed_avg,
                                    at::TensorList cluster_size, at::TensorList keys,
                                    at::TensorList rows, at::TensorList counts, at::TensorList rng,
                                    const DeadCodeOptions& options) {
  using Signature = at::Tensor(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                               at::TensorList, at::TensorList, at::TensorList, double, double,
                               double, bool, std::optional<double>);
  static auto op = detail::op_handle<Signature>("torchvq::replace_with_candidates_");
  return op.call(embed, embed_avg, cluster_size, keys, rows, counts, rng, options.threshold,
                 options.threshold_fraction, options.reset_cluster_size, options.replace_used,
                 options.most_per_token);
}

at::Tensor replace_with_candidates_(at::Tensor embed, at::Tensor embed_avg, at::Tensor cluster_size,
                                    const at::Tensor& keys, const at::Tensor& rows,
                                    const at::Tensor& counts, const at::Tensor& rng,
                                    const DeadCodeOptions& options) {
  return replace_with_candidates_(at::TensorList(embed), at::TensorList(embed_avg),
                                  at::TensorList(cluster_size), at::TensorList(keys),
                                  at::TensorList(rows), at::TensorList(counts), at::TensorList(rng),
                                  options);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "replace_with_candidates_(Tensor(a!)[] embed, Tensor(b!)[] embed_avg, Tensor(c!)[] "
      "cluster_size, Tensor[] keys, Tensor[] rows, Tensor[] counts, "
      "Tensor[] rng, *, float threshold, float threshold_fraction=0, float reset_cluster_size, "
      "bool replace_used=False, float? most_per_token=None) -> Tensor replaced");
}
