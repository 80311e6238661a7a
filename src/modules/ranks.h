// The collective parts of a training forward.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torchvq/distributed/ranks.h>
#include <torchvq/modules/vector_quantize.h>

namespace torchvq::detail {

using distributed::Ranks;

/// The name of the group of ranks that share a quantizer; empty if it is local to this process.
std::string group_of(const VectorQuantizeImpl& vq);

/// Decided at each call, because modules are often built before their group exists. There
/// is no group in evaluation.
///
/// @param owner  the module of the caller, which errors name,
/// @param dim    and its features.
Ranks ranks_of(const VectorQuantizeImpl& vq, const std::string& owner, int64_t dim);

/// `ranks_of` in evaluation, too: of an update outside of forward, which changes what ranks share in
/// either mode.
Ranks sharing_ranks_of(const VectorQuantizeImpl& vq, const std::string& owner, int64_t dim);

/// The level of a stack that tells which ranks learn together: the first, unless it alone evaluates.
const VectorQuantizeImpl& synced_level(const std::vector<VectorQuantize>& levels);

/// The options of the codebooks that must be the same on all ranks.
std::string joined_signature(const std::vector<Codebook>& codebooks);

/// The dtype in which tokens enter messages: it decides their size.
std::string tokens_text(at::ScalarType dtype);

/// A tensor without elements, for handshakes of modules without state: notes travel on the device
/// of the state.
at::Tensor on_device_of(const at::Tensor& tokens);

/// The handshake before the first synchronised step: rejects ranks with different options, and
/// makes their states equal.
///
/// @param call  what the call has to have in common with those of other ranks besides the options
///              of the codebooks. Each text has a handshake.
void handshake(const std::vector<Codebook>& codebooks, const Ranks& ranks, const std::string& call);

}  // namespace torchvq::detail
