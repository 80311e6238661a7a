#include <torchvq/modules/binary_mapper.h>

#include <ostream>
#include <utility>

#include <ATen/ops/zeros.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/functional/binary_codes.h>
#include <torchvq/ops/binary_codes.h>

#include "detail/checks.h"
#include "detail/precision.h"
#include "detail/token_checks.h"
#include "modules/indices.h"

namespace torchvq {

BinaryMapperImpl::BinaryMapperImpl(BinaryMapperOptions options_) : options(options_) { reset(); }

void BinaryMapperImpl::reset() {
  options.validate();
  register_rng(*this);
}

void BinaryMapperImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::BinaryMapper(bits=" << options.bits()
         << ", kl_loss_threshold=" << options.kl_loss_threshold() << ")";
}

bool BinaryMapperImpl::is_deterministic(const BinaryMapperForwardOptions& call) const {
  return call.deterministic().value_or(
      !is_training() && options.deterministic_on_eval().value_or(!options.vqp_compat()));
}

BinaryMapperOutput BinaryMapperImpl::forward(const torch::Tensor& logits,
                                             const BinaryMapperForwardOptions& call) {
  check_logits(logits);
  // Checked first: a rejected call leaves the generator unchanged.
  detail::check_non_negative("BinaryMapper", "temperature", call.temperature());
  if (const auto& mask = call.mask()) {
    detail::check_dtype("BinaryMapper", "mask", *mask, at::kBool);
    detail::check_same_device("BinaryMapper", "logits", logits, "mask", *mask);
    const auto tokens = logits.sizes().slice(0, static_cast<size_t>(logits.dim() - 1));
    TORCH_CHECK_VALUE(mask->sizes() == tokens, "BinaryMapper: expected mask to have shape ", tokens,
                      ", but got ", mask->sizes());
  }
  std::optional<torch::Tensor> draws;
  if (!is_deterministic(call)) {
    draws = take_rng(logits, call.mask(), is_training() ? distributed::default_group() : "");
  }
  const auto indices = ops::binary_sample(logits, draws, call.temperature(), call.mask());
  const bool straight = call.straight_through().value_or(is_training());
  const auto one_hot = ops::binary_one_hot(straight ? logits : logits.detach(), indices,
                                           options.vqp_compat() ? 1.0 : call.temperature());
  const auto loss =
      call.calc_aux_loss().value_or(is_training())
          ? ops::binary_kl_loss(logits, options.kl_loss_threshold(), call.mask(),
                                call.reduce_aux_kl_loss())
          : at::zeros({}, logits.options().dtype(detail::value_dtype(logits, logits)));
  return {one_hot, indices, loss};
}

torch::Tensor BinaryMapperImpl::binary_entropy(const torch::Tensor& logits) const {
  check_logits(logits);
  return functional::binary_entropy(logits);
}

torch::Tensor BinaryMapperImpl::calc_aux_loss(const torch::Tensor& logits,
                                              bool reduce_aux_kl_loss) const {
  check_logits(logits);
  return ops::binary_kl_loss(logits, options.kl_loss_threshold(), std::nullopt, reduce_aux_kl_loss);
}

torch::Tensor BinaryMapperImpl::log_prob(const torch::Tensor& logits,
                                         const std::optional<torch::Tensor>& indices,
                                         const std::optional<torch::Tensor>& one_hot,
                                         bool sum_bits) const {
  check_logits(logits);
  const auto whole =
      indices ? std::optional(detail::as_int64("BinaryMapper", *indices)) : std::nullopt;
  return functional::binary_log_prob(logits, whole, one_hot, sum_bits);
}

void BinaryMapperImpl::check_logits(const torch::Tensor& logits) const {
  detail::check_input_floating("BinaryMapper", "logits", logits);
  TORCH_CHECK_VALUE(logits.dim() >= 1 && logits.size(-1) == options.bits(),
                    "BinaryMapper: expected logits to have shape (*, ", options.bits(),
                    "), but got ", logits.sizes());
}

}  // namespace torchvq
