#include <torchvq/ops/replace_dead_codes_.h>

#include <torch/library.h>

#include "detail/codebook_state.h"
#include "detail/metric.h"
#include "detail/op_handle.h"
#include "ops/dead_code_candidates.h"
#include "ops/replace_dead_codes_.h"

namespace torchvq {

namespace detail {

void check_lists_of_codebooks(
    const char* op, at::TensorList embed,
    std::initializer_list<std::pair<const char*, at::TensorList>> others) {
  TORCH_CHECK_VALUE(!embed.empty(), op, ": expected embed to hold at least 1 tensor, but got none");
  for (const auto& [name, list] : others) {
    TORCH_CHECK_VALUE(list.size() == embed.size(), op, ": expected ", name, " to hold ",
                      embed.size(), " tensors (those of embed), but got ", list.size());
  }
  for (const auto& own : embed) {
    check_same_device(op, "embed of the first codebook", embed[0], "embed of another", own);
  }
}

void check_dead_code_state(const char* op, const DeadCodeState& state, const at::Tensor& counts,
                           const DeadCodeArguments& arguments) {
  check_codebook_state(op, state.cluster_size, state.embed_avg, state.embed);
  check_dtype(op, "counts", counts, at::kLong);
  check_rank(op, "counts", counts, 2, "(H, K)");
  for (int64_t axis = 0; axis < 2; ++axis) {
    check_size(op, "counts", counts, axis, state.embed.sym_size(axis), "as embed");
  }
  check_same_device(op, "embed", state.embed, "counts", counts);
  check_dead_code_rules(op, arguments);
}

void check_dead_code_rules(const char* op, const DeadCodeArguments& arguments) {
  // A replaced code gets the size of its limit, at most the product of two of these numbers, which
  // a float32 state holds. There are never more tokens.
  constexpr double kMost = 0x1p63;
  const std::pair<const char*, double> sizes[] = {
      {"threshold", arguments.threshold},
      {"threshold_fraction", arguments.threshold_fraction},
      {"reset_cluster_size", arguments.reset_cluster_size}};
  for (const auto& [name, value] : sizes) {
    TORCH_CHECK_VALUE(value >= 0 && value <= kMost, op, ": expected ", name,
                      " to be in [0, 2^63], but got ", value);
  }
  if (const auto most = arguments.most_per_token) {
    TORCH_CHECK_VALUE(*most >= 0 && *most <= kMost, op,
                      ": expected most_per_token to be in [0, 2^63], but got ", *most);
  }
}

bool check_replace_dead_codes_(const DeadCodeState& state, const at::Tensor& x,
                               const at::Tensor& counts, const at::Tensor& rng,
                               const std::optional<at::Tensor>& mask,
                               const DeadCodeArguments& arguments, std::string_view metric) {
  constexpr auto op = "replace_dead_codes_";
  check_dead_code_state(op, state, counts, arguments);
  check_candidate_source(op, x, rng, mask);
  check_size(op, "x", x, 0, state.embed.sym_size(0), "heads of embed");
  check_size(op, "x", x, 2, state.embed.sym_size(2), "dimensions of embed");
  check_same_device(op, "embed", state.embed, "x", x);
  return is_cosine(op, metric);
}

bool check_replace_dead_codes_(const CodebooksWithTokens& codebooks,
                               const DeadCodeArguments& arguments, std::string_view metric) {
  check_lists_of_codebooks("replace_dead_codes_", codebooks.embed,
                           {{"embed_avg", codebooks.embed_avg},
                            {"cluster_size", codebooks.cluster_size},
                            {"x", codebooks.x},
                            {"counts", codebooks.counts},
                            {"rng", codebooks.rng}});
  if (!codebooks.mask.empty())
    check_lists_of_codebooks("replace_dead_codes_", codebooks.embed, {{"mask", codebooks.mask}});
  bool unit = false;
  for (size_t i = 0; i < codebooks.size(); ++i) {
    unit = check_replace_dead_codes_(codebooks.state(i), codebooks.x[i], codebooks.counts[i],
                                     codebooks.rng[i], codebooks.mask_of(i), arguments, metric);
  }
  return unit;
}

}  // namespace detail

namespace ops {

at::Tensor replace_dead_codes_(at::TensorList embed, at::TensorList embed_avg,
                               at::TensorList cluster_size, at::TensorList x, at::TensorList counts,
                               at::TensorList rng, at::TensorList mask,
                               const DeadCodeOptions& options) {
  using Signature = at::Tensor(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                               at::TensorList, at::TensorList, at::TensorList, double, double,
                               double, std::string_view, bool, std::optional<double>);
  static auto op = detail::op_handle<Signature>("torchvq::replace_dead_codes_");
  return op.call(embed, embed_avg, cluster_size, x, counts, rng, mask, options.threshold,
                 options.threshold_fraction, options.reset_cluster_size, options.metric,
                 options.replace_used, options.most_per_token);
}

at::Tensor replace_dead_codes_(at::Tensor embed, at::Tensor embed_avg, at::Tensor cluster_size,
                               const at::Tensor& x, const at::Tensor& counts, const at::Tensor& rng,
                               const std::optional<at::Tensor>& mask,
                               const DeadCodeOptions& options) {
  return replace_dead_codes_(at::TensorList(embed), at::TensorList(embed_avg),
                             at::TensorList(cluster_size), at::TensorList(x),
                             at::TensorList(counts), at::TensorList(rng),
                             mask ? at::TensorList(*mask) : at::TensorList(), options);
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "replace_dead_codes_(Tensor(a!)[] embed, Tensor(b!)[] embed_avg, Tensor(c!)[] cluster_size, "
      "Tensor[] x, Tensor[] counts, Tensor[] rng, *, Tensor[] mask, float threshold, float "
      "threshold_fraction=0, float reset_cluster_size, "
      "str metric=\"euclidean\", bool replace_used=False, float? "
      "most_per_token=None) -> Tensor replaced");
}
