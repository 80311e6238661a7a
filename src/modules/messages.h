// The handshake before the first training forward that sends certain messages to the other ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <torchvq/modules/vector_quantize.h>

#include "modules/ranks.h"
#include "modules/request.h"

namespace torchvq::detail {

/// The handshake of a forward of one quantizer, whose projected tokens have this dtype. A module
/// that alternates between calls that send different messages makes one for each.
void agree(const VectorQuantizeImpl& vq, const Request& request, at::ScalarType dtype);

/// The handshake of an update outside of forward.
///
/// @param sent  the messages of the update, as text.
void agree_to_learn(const VectorQuantizeImpl& vq, const Ranks& ranks, at::ScalarType dtype,
                    const std::string& sent);

/// The numbers of the levels of which `holds` is true, each after a space.
std::string numbers_of(const std::vector<VectorQuantizeImpl*>& levels,
                       const std::function<bool(const VectorQuantizeImpl&)>& holds);

/// A forward of a stack.
struct StackCall {
  std::vector<VectorQuantizeImpl*> levels;  ///< the first tells what a call sends
  std::vector<Codebook> codebooks;          ///< of all levels
  std::string signature;  ///< the stack's own options in which ranks must agree, as text
  bool frozen;
  at::ScalarType dtype;  ///< of the projected tokens
  /// The levels in use, if the caller's seed decides that and not the state that ranks share.
  std::optional<int64_t> seeded_depth = std::nullopt;
};

/// Its handshake; there are ranks.
void agree_in_stack(const StackCall& call, const Ranks& ranks);

}  // namespace torchvq::detail
