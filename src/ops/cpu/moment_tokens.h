// The tokens of token_moments and token_moment_loss as their kernels read them.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "ops/cpu/moments.h"

namespace torchvq::detail {

/// x as float64, or as float32 if it has less, and the mask; both contiguous.
struct MomentInput {
  MomentInput(const at::Tensor& x_, const std::optional<at::Tensor>& mask_)
      : x(x_.to(x_.scalar_type() == at::kDouble ? at::kDouble : at::kFloat).contiguous()),
        mask(mask_ ? mask_->contiguous() : at::Tensor()) {}

  /// Calls body(MomentTokens<float or double>).
  template <typename Body>
  void visit(const Body& body) const {
    x.scalar_type() == at::kDouble ? body(tokens<double>()) : body(tokens<float>());
  }

  at::Tensor x, mask;

 private:
  template <typename T>
  MomentTokens<T> tokens() const {
    const int64_t dim = x.size(-1);
    return {x.const_data_ptr<T>(), mask.defined() ? mask.const_data_ptr<bool>() : nullptr,
            dim == 0 ? 0 : x.numel() / dim, dim};
  }
};

/// The gradient of input.x.
inline at::Tensor token_slopes(const MomentInput& input, const MomentSlopes& slopes) {
  auto result = at::empty(input.x.sizes(), input.x.options());
  input.visit([&]<typename T>(const MomentTokens<T>& tokens) {
    fill_token_slopes(tokens, slopes, result.mutable_data_ptr<T>());
  });
  return result;
}

}  // namespace torchvq::detail
