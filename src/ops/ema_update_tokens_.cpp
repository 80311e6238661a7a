#include <torchvq/ops/ema_update_tokens_.h>

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "detail/checks.h"
#include "detail/codebook_state.h"
#include "detail/metric.h"
#include "detail/op_handle.h"
#include "detail/token_checks.h"
#include "detail/token_mask.h"
#include "ops/ema_update_.h"
#include "ops/ema_update_tokens_.h"

namespace torchvq {

namespace detail {
namespace {

constexpr auto kOp = "ema_update_tokens_";

void check_codebook(const EmaUpdateTokensArguments& arguments, size_t codebook) {
  const auto& embed = arguments.embed[codebook];
  const auto& cluster_size = arguments.cluster_size[codebook];
  const auto &x = arguments.x[codebook], &indices = arguments.indices[codebook];
  const auto& counts = arguments.counts[codebook];
  check_codebook_state(kOp, cluster_size, arguments.embed_avg[codebook], embed);
  check_dtype(kOp, "counts", counts, at::kLong);
  check_rank(kOp, "counts", counts, 2, "(H, K)");
  check_size(kOp, "counts", counts, 0, embed.sym_size(0), "heads of embed");
  check_size(kOp, "counts", counts, 1, embed.sym_size(1), "codes of embed");
  check_floating(kOp, "x", x);
  check_dtype(kOp, "indices", indices, at::kLong);
  check_rank(kOp, "x", x, 3, "(H, N, D)");
  check_rank(kOp, "indices", indices, 2, "(H, N)");
  check_size(kOp, "x", x, 0, embed.sym_size(0), "heads of embed");
  check_size(kOp, "x", x, 2, embed.sym_size(2), "dimensions of embed");
  check_size(kOp, "indices", indices, 0, x.sym_size(0), "heads of x");
  check_size(kOp, "indices", indices, 1, x.sym_size(1), "tokens of x");
  check_same_device(kOp, "embed", embed, "counts", counts);
  check_same_device(kOp, "embed", embed, "x", x);
  check_same_device(kOp, "embed", embed, "indices", indices);
  check_token_mask(kOp, arguments.mask_of(codebook), x);
  if (arguments.weight.has_value()) check_weight(kOp, *arguments.weight, cluster_size);
}

void check_length(const char* name, at::TensorList list, size_t length) {
  TORCH_CHECK_VALUE(list.size() == length, kOp, ": expected ", name, " to hold ", length,
                    " tensors (those of embed), but got ", list.size());
}

}  // namespace

bool check_ema_update_tokens_(const EmaUpdateTokensArguments& arguments) {
  const size_t length = arguments.embed.size();
  check_length("cluster_size", arguments.cluster_size, length);
  check_length("embed_avg", arguments.embed_avg, length);
  check_length("counts", arguments.counts, length);
  check_length("x", arguments.x, length);
  check_length("indices", arguments.indices, length);
  if (!arguments.mask.empty()) check_length("mask", arguments.mask, length);
  for (size_t codebook = 0; codebook < length; ++codebook) check_codebook(arguments, codebook);
  check_decay(kOp, arguments.decay);
  check_non_negative(kOp, "eps", arguments.eps);
  return is_cosine(kOp, arguments.metric);
}

}  // namespace detail

namespace ops {

std::vector<at::Tensor> ema_update_tokens_(at::TensorList cluster_size, at::TensorList embed_avg,
                                           at::TensorList embed, at::TensorList x,
                                           at::TensorList indices, at::TensorList mask,
                                           const EmaUpdateOptions& options) {
  using Signature = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                         at::TensorList, at::TensorList, at::TensorList, double, double,
                         std::string_view, const std::optional<at::Tensor>&, bool, bool);
  static auto op = detail::op_handle<Signature>("torchvq::ema_update_tokens_");
  std::vector<at::Tensor> counts;
  for (size_t i = 0; i < embed.size(); ++i) {
    counts.push_back(at::empty_like(cluster_size[i], cluster_size[i].options().dtype(at::kLong),
                                    at::MemoryFormat::Contiguous));
  }
  op.call(cluster_size, embed_avg, embed, counts, x, indices, mask, options.decay, options.eps,
          options.metric, options.weight, options.from_codebook, options.finish);
  return counts;
}

}  // namespace ops

}  // namespace torchvq

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "ema_update_tokens_(Tensor(a!)[] cluster_size, Tensor(b!)[] embed_avg, Tensor(c!)[] embed, "
      "Tensor(d!)[] counts, Tensor[] x, Tensor[] indices, *, Tensor[] mask, float decay, float "
      "eps, "
      "str metric=\"euclidean\", Tensor? weight=None, bool from_codebook=False, bool finish=True) "
      "-> ()");
}
