// Settings to begin with, one table for both languages: docs/choosing.md says why, docs/learning.md
// has the numbers behind them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torchvq/export.h>

namespace torchvq {

/// The options with what is recommended for their class set; all others stay as they are.
///
/// The defaults of the classes are those of vector-quantize-pytorch; these settings learnt best in
/// the tables of docs/learning.md. Classes without a row there have what their papers have.
///
/// @tparam Options  the options of any class, ResidualVQOptions for one.
/// @param bits    of a token, for stacks of a token and level. Sizes that are no power of two come
///                near: 3 to 18 for classes that take `levels`, 1 to 62 for the others.
/// @param tokens  of a training step, of all ranks, for VectorQuantize alone: `decay` is then such
///                that a code's average holds some 40 of its tokens, within [0.9, 0.99].
/// Throws c10::ValueError for bits or tokens out of range, and for tokens of another class.
/// Example: `auto options = torchvq::recommended(torchvq::VectorQuantizeOptions(256), 9);`
template <typename Options>
TORCHVQ_API Options recommended(Options options, int64_t bits = 10,
                                std::optional<int64_t> tokens = std::nullopt);

/// The same by the name of the class, in any case, or "vq", "rvq", "bsq" (LFQ on the sphere) and
/// "latent" for short: "codebook_size=512", "decay=0.95" and so on, the size first.
///
/// Throws c10::ValueError as above, and for a name that is none.
TORCHVQ_API std::vector<std::string> recommended_options(
    const std::string& name, int64_t bits = 10, std::optional<int64_t> tokens = std::nullopt);

}  // namespace torchvq
