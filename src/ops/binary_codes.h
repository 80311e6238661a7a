#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace torchvq::detail {

/// Called by every kernel; each returns the number of bits.
int64_t check_binary_sample(const at::Tensor& logits, const std::optional<at::Tensor>& rng,
                            double temperature, const std::optional<at::Tensor>& mask);
int64_t check_binary_one_hot(const at::Tensor& logits, const at::Tensor& indices,
                             double temperature);
int64_t check_binary_one_hot_backward(const at::Tensor& grad, const at::Tensor& logits,
                                      const at::Tensor& indices, double temperature);
void check_binary_kl_loss(const at::Tensor& logits, double threshold,
                          const std::optional<at::Tensor>& mask);
void check_binary_kl_loss_backward(const at::Tensor& grad, const at::Tensor& logits,
                                   double threshold, const std::optional<at::Tensor>& mask,
                                   bool reduce);

/// For any device; the CPU kernels fall back to them for float64.
at::Tensor binary_kl_loss_any(const at::Tensor& logits, double threshold,
                              const std::optional<at::Tensor>& mask, bool reduce);
at::Tensor binary_kl_loss_backward_any(const at::Tensor& grad, const at::Tensor& logits,
                                       double threshold, const std::optional<at::Tensor>& mask,
                                       bool reduce);

}  // namespace torchvq::detail
