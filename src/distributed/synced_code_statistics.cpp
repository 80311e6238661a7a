#include <torchvq/distributed/synced_code_statistics.h>

#include <torch/library.h>

#include "detail/checks.h"
#include "detail/no_gradient.h"
#include "detail/op_handle.h"
#include "detail/random_tensor.h"
#include "distributed/levels.h"
#include "distributed/synced_code_statistics.h"
#include "ops/capture.h"
#include "ops/code_statistics.h"

namespace torchvq::distributed {

void check_reduction(const char* op, std::string_view reduction) {
  TORCH_CHECK_VALUE(reduction == "exact" || reduction == "float", op,
                    ": expected reduction to be \"exact\" or \"float\", but got \"", reduction,
                    "\"");
}

void check_synced_code_statistics(at::TensorList x, at::TensorList indices,
                                  at::TensorList exponents, at::TensorList mask,
                                  at::TensorList state, const std::optional<at::Tensor>& rng,
                                  std::string_view reduction) {
  constexpr auto op = "synced_code_statistics";
  const Levels levels{x, mask};
  check_levels(op, levels, exponents.size());
  TORCH_CHECK_VALUE(indices.size() == levels.size(), op, ": expected indices to hold ",
                    levels.size(), " tensors (levels of x), but got ", indices.size());
  check_reduction(op, reduction);
  for (size_t level = 0; level < levels.size(); ++level) {
    detail::check_code_statistics(x[level], indices[level], exponents[level],
                                  levels.mask_of(level));
    detail::check_same_device(op, "x[0]", x[0], "x of another level", x[level]);
  }
  for (const auto& tensor : state) detail::check_same_device(op, "x[0]", x[0], "state", tensor);
  if (rng.has_value()) {
    detail::check_rng(op, *rng);
    detail::check_same_device(op, "x[0]", x[0], "rng", *rng);
  }
}

SyncedStatistics synced_code_statistics(at::TensorList x, at::TensorList indices,
                                        at::TensorList exponents,
                                        const SyncedStatisticsOptions& options) {
  static auto op =
      detail::op_handle<SyncedCodeStatisticsSignature>("torchvq::synced_code_statistics");
  const auto rng = options.rng.defined() ? std::optional(options.rng) : std::nullopt;
  auto [counts, sums, used] =
      op.call(x, indices, exponents, options.mask, options.state, rng, options.signature,
              options.reduction, options.group_name, options.label);
  return {std::move(counts), std::move(sums), std::move(used)};
}

StatisticsLists empty_statistics(at::TensorList x, at::TensorList indices,
                                 at::TensorList exponents) {
  std::vector<at::Tensor> counts, sums, used;
  for (size_t level = 0; level < x.size(); ++level) {
    const auto heads = exponents[level].sym_size(0), size = exponents[level].sym_size(1);
    const c10::SymInt words = detail::sum_words(x[level].scalar_type());
    counts.push_back(indices[level].new_empty_symint({heads, size}));
    sums.push_back(indices[level].new_empty_symint({words, heads, size, x[level].sym_size(2)}));
    used.push_back(exponents[level].new_empty_symint({heads, size}));
  }
  return {counts, sums, used};
}

namespace {

StatisticsLists synced_code_statistics_meta(
    at::TensorList x, at::TensorList indices, at::TensorList exponents, at::TensorList mask,
    at::TensorList state, const std::optional<at::Tensor>& rng, std::string_view /*signature*/,
    std::string_view reduction, std::string_view /*group_name*/, std::string_view /*label*/) {
  check_synced_code_statistics(x, indices, exponents, mask, state, rng, reduction);
  return empty_statistics(x, indices, exponents);
}

}  // namespace

}  // namespace torchvq::distributed

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "synced_code_statistics(Tensor[] x, Tensor[] indices, Tensor[] exponents, *, Tensor[] mask, "
      "Tensor[] state, Tensor? rng=None, str signature=\"\", str reduction=\"exact\", "
      "str group_name=\"\", str label=\"quantizer\") -> (Tensor[] counts, Tensor[] sums, Tensor[] "
      "exponents)",
      torchvq::detail::waits());
}

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("synced_code_statistics", torchvq::distributed::synced_code_statistics_meta);
}

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("synced_code_statistics",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
}
