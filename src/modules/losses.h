// The terms of the loss of VectorQuantize, each undefined where the module or the call does
// without.
#pragma once

#include <torchvq/modules/vector_quantize.h>

#include "modules/call.h"

namespace torchvq::detail {

/// The distance of tokens and codes; with targets the cross-entropy towards them; with topk one per
/// candidate.
at::Tensor commitment(const VectorQuantizeImpl& vq, const Chosen& chosen, const Call& call);

/// Minus the entropy of the mean code distribution, over the ranks whose `totals` are given.
at::Tensor diversity(const VectorQuantizeImpl& vq, const Chosen& chosen,
                     const std::optional<at::Tensor>& totals);

/// The likeness of the codes to each other, as they are after this step.
at::Tensor orthogonal(const VectorQuantizeImpl& vq, const at::Tensor& indices);

/// Puts 0 in the place of terms that are undefined.
LossBreakdown breakdown(const at::Tensor& inputs, LossBreakdown terms);

/// The weighted sum; with targets the cross-entropy alone.
at::Tensor total(const VectorQuantizeImpl& vq, const LossBreakdown& terms, const Call& call);

}  // namespace torchvq::detail
