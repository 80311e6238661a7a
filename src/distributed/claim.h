// The values that must be the same on all ranks in a step: each rank sends a hash of its claim in
// the header of the message, and the claim itself if hashes differ.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "detail/random_tensor.h"
#include "distributed/agreement.h"
#include "distributed/fingerprint.h"
#include "distributed/group.h"

namespace torchvq::distributed {

struct Claim {
  std::string signature;
  at::Tensor state;  ///< fingerprint of the replicated state, int64 scalar
  at::Tensor rng;    ///< (2,), or undefined

  [[nodiscard]] at::Tensor hash() const {
    return detail::mix_bits(state.bitwise_xor(static_cast<int64_t>(fingerprint(signature))));
  }

  /// Throws on all ranks, quoting all claims, if the claims differ.
  void expect(const Group& group, const Verdict& verdict) const {
    if (verdict.agree) return;
    throw_disagreement(group, describe_step(signature, state, rng), state.device());
  }
};

}  // namespace torchvq::distributed
