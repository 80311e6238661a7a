// Codes of a half-precision parameter in the precision of their averages.
#pragma once

#include <ATen/core/Tensor.h>
#include <torchvq/export.h>

#include <string>

namespace torchvq::functional {

/// Undoes the rounding of codes that are stored in half precision.
///
/// A code moves by less than its own rounding in most steps; averages that restarted from the
/// rounded code would not move. If the averages round to the stored code, nothing else has changed
/// it, and the value of the averages is used.
///
/// Formula   a = the code that ema_finish_() makes of the averages; result = a where a rounds to
///           embed, else embed
///
/// @param embed         (H, K, D), floating point.
/// @param cluster_size  (H, K), float32 or float64.    @param embed_avg  (H, K, D), its dtype.
/// @param eps, metric   as for ema_finish_().
/// @return              (H, K, D), new, dtype of embed_avg. No gradient.
TORCHVQ_API at::Tensor wide_codes(const at::Tensor& embed, const at::Tensor& cluster_size,
                                  const at::Tensor& embed_avg, double eps,
                                  const std::string& metric);

}  // namespace torchvq::functional
