// A random order of vectors by their bits: a token has the same key on any rank and at any
// position, so choices by key depend only on the set of tokens.
#pragma once

#include <limits>
#include <optional>
#include <utility>

#include <ATen/core/Tensor.h>

#include <torchvq/random_purpose.h>

namespace torchvq::detail {

/// Key of excluded rows; larger than every other key.
constexpr int64_t kNoKey = std::numeric_limits<int64_t>::max();

/// Non-negative int64 keys (H, M) of `rows` (H, M, D), float32 or float64. Multilinear hashing: a
/// sum over d of bits * multiplier[d], finished by mix_bits; the bits of float64 are mixed first.
/// -0 counts as +0. Different vectors share a key once in 2^63, of float32 once in 2^32 at most.
at::Tensor row_keys(const at::Tensor& rows, const at::Tensor& rng, RandomPurpose purpose);

/// row_keys() of tokens that can become codes, and kNoKey for the others: those that are not finite,
/// masked, or, if `nonzero`, zero.
at::Tensor candidate_keys(const at::Tensor& rows, const at::Tensor& rng,
                          const std::optional<at::Tensor>& mask, bool nonzero);

/// row_keys() by tensor operators, used on devices other than the CPU; declared for its test.
at::Tensor row_keys_by_operators(const at::Tensor& rows, const at::Tensor& rng,
                                 RandomPurpose purpose);

/// True where a row (H, N, D) is finite and, if there is a mask, real.
at::Tensor usable_rows(const at::Tensor& rows, const std::optional<at::Tensor>& mask);

/// Sorts keys (H, M) and sets repeated keys to kNoKey. Returns these keys, not sorted again, and
/// their original positions.
std::pair<at::Tensor, at::Tensor> sort_distinct(const at::Tensor& keys);

/// Tokens as float32 or float64 rows that can become codes: half-precision types are widened, and
/// rows are normalized if `unit`.
at::Tensor rows_as_codes(const at::Tensor& x, bool unit);

}  // namespace torchvq::detail
