#include <torchvq/modules/sim_vq.h>

#include <cmath>
#include <ostream>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/distributed/replicas.h>
#include <torchvq/functional/layout.h>
#include <torchvq/functional/linear_quantize.h>
#include <torchvq/functional/losses.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/ops/lookup_codes.h>

#include "detail/without_autocast.h"
#include "modules/copy_tensors.h"
#include "modules/layout.h"
#include "modules/projection.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

/// A half-precision linear layer multiplies in float32, as for learnable codes.
torch::Tensor transformed(const torch::nn::LinearImpl& layer, const torch::Tensor& codes) {
  const auto dtype = layer.weight.scalar_type();
  const auto wide = dtype == at::kHalf || dtype == at::kBFloat16 ? at::kFloat : dtype;
  const auto bias = layer.bias.defined() ? OptionalTensor(layer.bias.to(wide)) : std::nullopt;
  return at::linear(codes.to(wide), layer.weight.to(wide), bias);
}

/// Applies a user's network to codes in the dtype of its weights.
torch::Tensor run_transform(torch::nn::AnyModule& network, const torch::Tensor& codes) {
  for (const auto& weight : network.ptr()->parameters()) {
    if (!weight.is_floating_point()) continue;
    return network.forward<torch::Tensor>(detail::for_weight(weight, codes));
  }
  return network.forward<torch::Tensor>(codes);
}

/// The transform of a training step, if one operator can compute all codes and choose among
/// them: a linear layer in the dtype of the codes, which must be that of the tokens'
/// arithmetic. Otherwise null.
const torch::nn::LinearImpl* plain_map(const SimVQImpl& vq, const torch::Tensor& tokens) {
  const auto* linear = vq.code_transform.ptr()->as<torch::nn::LinearImpl>();
  if (linear == nullptr || !vq.is_training()) return nullptr;
  const auto dtype = tokens.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto &weight = linear->weight, &frozen = vq.frozen_codebook;
  // A layer of other sizes is left to the path that reports the error.
  const bool fits = weight.scalar_type() == dtype && frozen.scalar_type() == dtype &&
                    weight.size(0) == vq.options.dim() && weight.size(1) == frozen.size(1);
  return fits ? linear : nullptr;
}

}  // namespace

SimVQImpl::SimVQImpl(SimVQOptions options_, bool owns_transform)
    : options(std::move(options_)),
      handle_(distributed::new_handle()),
      owns_transform_(owns_transform) {
  reset();
}

void SimVQImpl::reset() {
  options.validate();
  const auto width = options.frozen_codebook_dim().value_or(options.dim());
  auto drawn = at::randn({options.codebook_size(), width}) / std::sqrt(static_cast<double>(width));
  if (options.init_fn()) drawn = options.init_fn()(drawn);
  TORCH_CHECK_VALUE(
      drawn.dim() == 2 && drawn.size(0) == options.codebook_size() && drawn.size(1) == width,
      "SimVQ: expected init_fn to return codes of shape [", options.codebook_size(), ", ", width,
      "], but got ", drawn.sizes());
  frozen_codebook = register_buffer("frozen_codebook", drawn.detach());
  code_transform = options.codebook_transform();
  if (code_transform.is_empty()) {
    code_transform = torch::nn::AnyModule(
        torch::nn::Linear(torch::nn::LinearOptions(width, options.dim()).bias(false)));
  }
  if (owns_transform_) register_module("code_transform", code_transform.ptr());
}

void SimVQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::SimVQ(dim=" << options.dim() << ", codebook_size=" << options.codebook_size()
         << ")";
}

std::shared_ptr<torch::nn::Module> SimVQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = options;
  own.init_fn({});
  auto& transform = own.codebook_transform();
  if (!transform.is_empty()) transform = transform.clone(device);
  auto copy = std::make_shared<SimVQImpl>(std::move(own), owns_transform_);
  detail::copy_tensors(*this, *copy, device);
  return copy;
}

std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>
SimVQImpl::borrowed_modules() const {
  if (owns_transform_) return {};
  return {{"code_transform", code_transform.ptr()}};
}

// Codes -------------------------------------------------------------------------------------------

torch::Tensor SimVQImpl::codebook() {
  // Decoding recomputes the codes, possibly outside autocast.
  const detail::WithoutAutocast without_autocast;
  const auto* linear = code_transform.ptr()->as<torch::nn::LinearImpl>();
  const auto codes = linear != nullptr ? transformed(*linear, frozen_codebook)
                                       : run_transform(code_transform, frozen_codebook);
  TORCH_CHECK_VALUE(codes.dim() == 2 && codes.size(0) == options.codebook_size() &&
                        codes.size(1) == options.dim(),
                    "SimVQ: expected codebook_transform to return codes of shape [",
                    options.codebook_size(), ", ", options.dim(), "], but got ", codes.sizes());
  return codes;
}

torch::Tensor SimVQImpl::codes_for(at::ScalarType dtype) {
  const auto codes = codebook().unsqueeze(0);
  // The input determines the precision of the arithmetic, even if the module was cast to double.
  const bool narrow = codes.scalar_type() == at::kDouble && dtype != at::kDouble;
  return narrow || codes.scalar_type() == at::kHalf || codes.scalar_type() == at::kBFloat16
             ? codes.to(at::kFloat)
             : codes;
}

torch::Tensor SimVQImpl::indices_to_codes(const torch::Tensor& indices) {
  const auto every = codebook();
  const bool wide = every.scalar_type() == at::kDouble;
  const auto codes = ops::lookup_codes(every.to(wide ? at::kDouble : at::kFloat).unsqueeze(0),
                                       layout().split_indices(indices));
  const auto output = layout().join_heads(codes, indices.sizes());
  // (B, dim) has no position axis to move.
  return output.dim() > 2 ? layout().place_features(output) : output;
}

// Forward -----------------------------------------------------------------------------------------

detail::Layout SimVQImpl::layout() const {
  return {.dim = options.dim(),
          .heads = 1,
          .separate = false,
          .channel_first = options.channel_first(),
          .map_rank = 0,
          .owner = "SimVQ"};
}

std::string SimVQImpl::estimator() const {
  if (!is_training()) return "none";
  if (!options.rotation_trick()) return "straight_through";
  return options.vqp_compat() ? "vqp_rotation_trick" : "rotation_trick";
}

SimVQImpl::SearchResult SimVQImpl::choose(const torch::Tensor& tokens, const OptionalTensor& mask,
                                          const std::string& estimator,
                                          const OptionalTensor& chosen) {
  if (const auto* linear = plain_map(*this, tokens); linear != nullptr && !chosen) {
    const auto bias = linear->bias.defined() ? OptionalTensor(linear->bias) : std::nullopt;
    auto found = F::linear_quantize(tokens, frozen_codebook, linear->weight, bias, mask, estimator);
    return {found.quantized, found.indices, found.codes, found.inputs};
  }
  // The generator is not used.
  const auto rng = at::zeros({2}, tokens.options().dtype(at::kLong).requires_grad(false));
  auto found = F::quantize(tokens, codes_for(tokens.scalar_type()), rng, mask,
                           F::QuantizeOptions().estimator(estimator).chosen(chosen));
  return {found.quantized, found.indices, found.codes, found.inputs};
}

torch::Tensor SimVQImpl::loss_of(const SearchResult& result, const OptionalTensor& mask) const {
  const auto weight = options.commitment_weight();
  return F::paired_loss(result.inputs, result.codes, mask,
                        weight * options.input_to_quantize_commit_loss_weight(), weight,
                        is_training());
}

SimVQOutput SimVQImpl::forward(const torch::Tensor& x, const OptionalTensor& mask) {
  const auto places = layout();
  places.check_input(x);
  const auto token_mask = places.token_mask(x, mask, std::nullopt);
  if (const auto ranks = group(); !ranks.empty()) handshake(ranks);
  auto tokens = places.pack(x);
  // Padding may hold anything, including NaN; zeros keep it out of every gradient.
  if (token_mask) tokens = F::fill_masked(tokens, *token_mask);
  const auto rows = places.split_mask(token_mask);
  const auto result = choose(places.split_heads(tokens), rows, estimator());
  auto output =
      places.merge_features(result.quantized, tokens.size(0), tokens.size(1)).to(x.scalar_type());
  if (token_mask) output = F::fill_padding(output, *token_mask);
  return {places.unpack(output, x), places.restore_positions(result.indices, x),
          loss_of(result, rows)};
}

// Ranks -------------------------------------------------------------------------------------------

std::string SimVQImpl::group() const {
  if (!is_training() || !options.sync_codebook().value_or(true)) return "";
  return options.process_group().value_or(distributed::default_group());
}

void SimVQImpl::handshake(const std::string& group) const {
  distributed::HandshakeOptions call;
  call.group_name = group;
  call.label = "SimVQ(dim=" + std::to_string(options.dim()) +
               ", codebook_size=" + std::to_string(options.codebook_size()) + ")";
  call.handle = handle_;
  call.signature = call.label;
  distributed::handshake_({frozen_codebook}, call);
}

}  // namespace torchvq
