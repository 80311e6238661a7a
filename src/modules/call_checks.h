// Checks of the arguments of a forward, which run before the forward writes anything: a refused
// call leaves state and generators unchanged.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/modules/vector_quantize.h>

#include "modules/layout.h"

namespace torchvq::detail {

/// Throws c10::ValueError for options of a quantizer in training that were set wrong after
/// construction. The operators check them, too, but k-means, the statistics of the affine map, and
/// other levels or groups of the same step may have been written by then.
void check_options_set_later(const VectorQuantizeImpl& vq);

/// Throws c10::ValueError if `affine_param` was set after construction.
void check_affine_param(const VectorQuantizeImpl& vq);

/// Throws c10::ValueError unless the temperature of a call, or the option where codes are sampled,
/// is finite.
void check_temperature(const VectorQuantizeOptions& options, std::optional<double> temperature,
                       const std::string& owner);

/// Throws unless targets are int64 in the shape of the indices that forward returns for x, and -1
/// or indices of codes: c10::TypeError, c10::ValueError or c10::IndexError. Values on a device are
/// left to the operators, because reading them would wait for it.
void check_targets(const at::Tensor& targets, const at::Tensor& x, const Layout& layout,
                   int64_t codebook_size);

/// The same for targets whose shape is known to fit.
void check_target_values(const at::Tensor& targets, int64_t codebook_size,
                         const std::string& owner);

/// Targets as forward returns them, also if they are given flat, in one axis.
at::Tensor unflattened(const at::Tensor& targets, const at::Tensor& x, const Layout& layout);

/// Throws c10::ValueError unless ema_update_weight broadcasts to averages (H, K) and is finite.
void check_ema_weight(const at::Tensor& weight, const at::Tensor& cluster_size);

}  // namespace torchvq::detail
