// The `metric` argument of the operators: how tokens and codes are compared.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/string_view.h>

namespace torchvq::detail {

enum class Metric { kEuclidean, kCosine };

inline Metric parse_metric(const char* op, c10::string_view metric) {
  if (metric == "euclidean") return Metric::kEuclidean;
  TORCH_CHECK_VALUE(metric == "cosine", op,
                    ": expected metric to be 'euclidean' or 'cosine', but got '", metric, "'");
  return Metric::kCosine;
}

inline bool is_cosine(const char* op, c10::string_view metric) {
  return parse_metric(op, metric) == Metric::kCosine;
}

}  // namespace torchvq::detail
