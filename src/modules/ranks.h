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

/// Before the first synchronised step: ranks that do not fit together find out, those that do start
/// alike.
void shake_hands(const std::vector<Codebook>& codebooks, const Ranks& ranks);

/// What draws per token use: ranks hold different tokens, so they draw different numbers.
at::Tensor noise_rng(const at::Tensor& rng, const Ranks& ranks);

/// The tokens of one level and the codebook that they teach.
struct Tokens {
  CodebookImpl* codebook;
  at::Tensor x;        ///< (H, T, D), in the space of the raw codes
  at::Tensor indices;  ///< (H, T)
  std::optional<at::Tensor> mask;
};

/// Statistics of the tokens of all ranks, one all-reduce for all levels.
std::vector<CodebookImpl::Statistics> collect(const std::vector<Tokens>& levels,
                                              const Ranks& ranks);

/// Puts tokens of this step, of all ranks, in the place of codes that fell out of use.
void replace_dead_codes(const std::vector<Tokens>& levels, const std::vector<at::Tensor>& counts,
                        const Ranks& ranks);

/// Counts a step, so that the next draws are new ones; a step without tokens on any rank does not
/// count.
///
/// @param counts  tokens per code of all ranks, where they are known.
/// @param mask, x  (H, T), (H, T, D): the tokens of this rank.
void advance_rng(const at::Tensor& rng, const std::optional<at::Tensor>& counts,
                 const std::optional<at::Tensor>& mask, const at::Tensor& x, const Ranks& ranks);

}  // namespace torchvq::detail
