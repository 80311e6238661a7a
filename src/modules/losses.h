// The losses of VectorQuantize, or of one level of a stack, from the module's options and the call.
#pragma once

#include <torchvq/functional/quantizer_losses.h>
#include <torchvq/modules/vector_quantize.h>

#include "modules/request.h"

namespace torchvq::detail {

/// @param tokens  (B, N, dim), before the projection; empty if vector_quantize_() receives them.
functional::QuantizerLossOptions loss_options(const VectorQuantizeImpl& vq,
                                              const std::optional<at::Tensor>& tokens,
                                              const Request& request);

/// Whether a forward leaves padding as it is, because the diversity loss covers it, as in the
/// reference.
bool sees_padding(const VectorQuantizeOptions& options, bool training);

/// The weighted loss of one level of a stack, a scalar, after its codebook has learnt.
at::Tensor level_loss(const VectorQuantizeImpl& vq, const functional::SearchedTokens& searched,
                      const Request& request, functional::QuantizerLosses losses,
                      const functional::QuantizerLossOptions& options);

/// The targets of a call as (H, T), int64; empty if there are none to score.
std::optional<at::Tensor> targets_of(const VectorQuantizeImpl& vq, const Request& request);

}  // namespace torchvq::detail
