// Argument checks of sign_entropy, and the division of bits into groups and halves.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// The largest group of bits with a joint distribution.
inline constexpr int64_t kMostJointBits = 24;

/// Bits first ... first + bits - 1 of a code; the first `high` of them are
/// half A, the others half B.
struct SignGroup {
  int64_t first, bits, high;
  int64_t offset;  ///< of the group's probabilities in a row of totals

  int64_t low() const { return bits - high; }
  int64_t size() const { return int64_t{1} << bits; }
};

std::vector<SignGroup> sign_groups(int64_t bits);

/// Columns of totals: all probabilities, then entropy, tokens, ranks.
int64_t sign_totals_size(int64_t bits);

/// Called by every kernel.
void check_sign_entropy(const at::Tensor& x, double sharpness,
                        const std::optional<at::Tensor>& mask,
                        const std::optional<at::Tensor>& totals = std::nullopt);

at::Tensor sign_entropy_totals_any(const at::Tensor& x, double sharpness,
                                   const std::optional<at::Tensor>& mask);

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> sign_entropy_forward_any(
    const at::Tensor& x, double sharpness, const std::optional<at::Tensor>& mask,
    const std::optional<at::Tensor>& totals, bool wanted);

}  // namespace torchvq::detail
