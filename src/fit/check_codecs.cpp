// What a codec must hold: apart from its arithmetic, so that the fuzzers of its files can be linked without operators.
#include <c10/util/Exception.h>
#include <torchvq/fit/projected_codec.h>
#include <torchvq/fit/scalar_codec.h>

#include <algorithm>

#include "detail/has_shape.h"
#include "detail/metric.h"
#include "detail/scalar_levels.h"

namespace torchvq::fit {
namespace {

// As many as readers of files accept; features() cannot overflow.
constexpr int64_t kMostFeatures = int64_t{1} << 62;

bool has_maps(const ScalarCodec& codec) {
  return codec.in_weight.defined() || codec.in_bias.defined() || codec.out_weight.defined() ||
         codec.out_bias.defined();
}

/// The features that a map gives for `features`, which are those it takes.
int64_t features_after(const char* where, const Projection& map, int64_t features) {
  if (!map.weight.defined()) {
    TORCH_CHECK_VALUE(!map.bias.defined(), where,
                      ": expected maps without a weight to have no bias, but got one");
    return features;
  }
  TORCH_CHECK_VALUE(
      map.weight.dim() == 2 && map.weight.size(0) >= 1 && map.weight.size(1) == features, where,
      ": expected a map of ", features, " features to at least 1, but got weights of shape ",
      map.weight.sizes());
  TORCH_CHECK_VALUE(!map.bias.defined() || map.bias.sizes() == map.weight.sizes().slice(0, 1),
                    where, ": expected a bias of ", map.weight.size(0), " features, but got shape ",
                    map.bias.sizes());
  return map.weight.size(0);
}

void check_stack(const char* where, const ProjectedStack& stack, int64_t dim) {
  TORCH_CHECK_VALUE(!stack.levels.empty(), where,
                    ": expected stacks of at least one level, but got none");
  const auto inner = features_after(where, stack.in, dim);
  for (const auto& [in, codebook, out] : stack.levels) {
    const auto features = features_after(where, in, inner);
    TORCH_CHECK_VALUE(codebook.defined() && codebook.dim() == 2 && codebook.size(0) >= 1 &&
                          codebook.size(1) == features,
                      where, ": expected a codebook of shape (K, ", features, "), but got ",
                      codebook.defined() ? c10::str(codebook.sizes()) : "an undefined tensor");
    const auto given = features_after(where, out, features);
    TORCH_CHECK_VALUE(given == inner, where, ": expected codes of ", inner,
                      " features after their map, but got ", given);
  }
  const auto given = features_after(where, stack.out, inner);
  TORCH_CHECK_VALUE(given == dim, where, ": expected a stack to give ", dim, " features, but got ",
                    given);
}

}  // namespace

void check_scalar_codec(const char* where, const ScalarCodec& codec) {
  const bool signs = codec.method == "lfq";
  TORCH_CHECK_VALUE(signs || codec.method == "fsq", where,
                    ": expected method to be fsq or lfq, but got ", codec.method);
  TORCH_CHECK_VALUE(codec.num_codebooks >= 1 && codec.dim >= 1 && !codec.levels.empty(), where,
                    ": expected a codec with at least one codebook, feature and number of levels, "
                    "but got ",
                    codec.num_codebooks, ", ", codec.dim, " and ", codec.levels.size());
  detail::check_scalar_levels(where, codec.levels, 2);
  TORCH_CHECK_VALUE(!signs || *std::ranges::max_element(codec.levels) == 2, where,
                    ": expected levels to be 2 each for lfq, but got ",
                    at::IntArrayRef(codec.levels));
  TORCH_CHECK_VALUE(
      codec.num_codebooks <= kMostFeatures / static_cast<int64_t>(codec.levels.size()), where,
      ": expected num_codebooks to be of codebooks that fit in memory, but got ",
      codec.num_codebooks);
  const int64_t features = codec.features(), dim = codec.dim;
  const bool fits = !has_maps(codec) ? features == dim
                                     : detail::has_shape(codec.in_weight, {features, dim}) &&
                                           detail::has_shape(codec.in_bias, {features}) &&
                                           detail::has_shape(codec.out_weight, {dim, features}) &&
                                           detail::has_shape(codec.out_bias, {dim});
  TORCH_CHECK_VALUE(fits, where, ": expected maps between ", dim, " and ", features,
                    " features, or none if these are equal, but got ",
                    has_maps(codec) ? "maps of other shapes" : "none");
}

void check_projected_codec(const char* where, const ProjectedCodec& codec) {
  detail::parse_metric(where, codec.metric);
  TORCH_CHECK_VALUE(codec.dim >= 1 && !codec.stacks.empty(), where,
                    ": expected a codec with at least one feature and stack, but got ", codec.dim,
                    " and ", codec.stacks.size());
  for (const auto& stack : codec.stacks) check_stack(where, stack, codec.dim);
}

}  // namespace torchvq::fit
