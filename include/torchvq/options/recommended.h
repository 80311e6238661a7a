// Recommended settings, one table for both languages: docs/choosing.md says why, docs/learning.md
// has the numbers behind them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torchvq/export.h>

namespace torchvq {

/// Sets the options that are recommended for their class, and leaves all others unchanged.
///
/// The defaults of the classes are those of vector-quantize-pytorch; these settings learnt best in
/// the tables of docs/learning.md. Classes without a row there get the settings of their papers.
///
/// @tparam Options  the options of any class, ResidualVQOptions for one.
/// @param bits    bits per token, for stacks per token and level: 3 to 18 for classes that take
///                `levels`, whose codebook sizes are only near a power of two, 1 to 62 for LFQ and
///                its stacks, and 1 to 30 for the others.
/// @param tokens  tokens per training step over all ranks, for VectorQuantize only: chooses `decay`
///                in [0.9, 0.99] so that a code's average holds about 40 of its tokens.
/// @param moving  the distribution of the tokens moves while the codebook learns: averages hold
///                about 16 tokens, with `decay` in [0.9, 0.975]. Needs tokens.
/// Throws c10::ValueError for bits or tokens out of range, for tokens with another class, and for
/// moving without tokens.
/// Example: `auto options = torchvq::recommended(torchvq::VectorQuantizeOptions(256), 9);`
template <typename Options>
TORCHVQ_API Options recommended(Options options, int64_t bits = 10,
                                std::optional<int64_t> tokens = std::nullopt, bool moving = false);

/// The same by the name of the class, in any case, or "vq", "rvq", "bsq" (LFQ on the sphere) and
/// "latent" for short: "codebook_size=512", "decay=0.95" and so on, the size first.
///
/// Throws c10::ValueError as above, and for an unknown name.
TORCHVQ_API std::vector<std::string> recommended_options(
    const std::string& name, int64_t bits = 10, std::optional<int64_t> tokens = std::nullopt,
    bool moving = false);

}  // namespace torchvq
