// The steps of a training forward that ranks take together.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torchvq/distributed/ranks.h>
#include <torchvq/modules/vector_quantize.h>

namespace torchvq::detail {

using distributed::Ranks;

/// The name of the group of ranks that share a quantizer in training; empty where it belongs to
/// this process.
std::string group_of(const VectorQuantizeImpl& vq);

/// Decided at each call, because modules are often built before their group exists. Evaluation is
/// always alone.
Ranks ranks_of(const VectorQuantizeImpl& vq, const std::string& owner);

/// What the codebooks must have in common over the ranks.
std::string joined_signature(const std::vector<Codebook>& codebooks);

/// Before the first synchronised step: ranks that do not fit together find out, those that do start
/// alike.
void handshake(const std::vector<Codebook>& codebooks, const Ranks& ranks);

}  // namespace torchvq::detail
