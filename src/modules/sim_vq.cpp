#include <torchvq/modules/sim_vq.h>

#include <cmath>
#include <ostream>
#include <typeinfo>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>

#include <torchvq/distributed/ranks.h>
#include <torchvq/distributed/replicas.h>
#include <torchvq/functional/linear_quantize.h>
#include <torchvq/functional/losses.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/ops/lookup_codes.h>

#include "detail/precision.h"
#include "detail/without_autocast.h"
#include "modules/copy_tensors.h"
#include "modules/layout.h"
#include "modules/projection.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

/// The transform if it is a linear layer, otherwise null: a class derived from it may have a forward
/// of its own.
const torch::nn::LinearImpl* linear_layer(const torch::nn::AnyModule& transform) {
  const auto module = transform.ptr();
  const auto& type = *module;
  return typeid(type) == typeid(torch::nn::LinearImpl) ? type.as<torch::nn::LinearImpl>() : nullptr;
}

/// A half-precision linear layer multiplies in float32, as for learnable codes.
torch::Tensor transformed(const torch::nn::LinearImpl& layer, const torch::Tensor& codes) {
  const auto dtype = layer.weight.scalar_type();
  const auto wide = detail::is_half(dtype) ? at::kFloat : dtype;
  const auto bias = layer.bias.defined() ? OptionalTensor(layer.bias.to(wide)) : std::nullopt;
  return at::linear(codes.to(wide), layer.weight.to(wide), bias);
}

}  // namespace

SimVQImpl::SimVQImpl(SimVQOptions options_, bool owns_transform)
    : options(std::move(options_)),
      built_from_(options),
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
  // init_fn may return a tensor that it keeps, or one that several levels get.
  frozen_codebook =
      register_buffer("frozen_codebook", drawn.detach().clone(at::MemoryFormat::Contiguous));
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
  auto own = built_from_;
  own.init_fn({});
  auto& transform = own.codebook_transform();
  transform = transform.clone(device);
  auto copy = std::make_shared<SimVQImpl>(std::move(own), owns_transform_);
  detail::copy_tensors(*this, *copy, device);
  copy->copy_options(*this, device);
  return copy;
}

void SimVQImpl::copy_options(const SimVQImpl& other, const std::optional<torch::Device>& device) {
  detail::copy_options(other.options, other.built_from_, options, device,
                       [](auto& all) -> auto& { return all.codebook_transform(); });
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
  const auto* linear = linear_layer(code_transform);
  const auto codes = linear != nullptr ? transformed(*linear, frozen_codebook)
                                       : detail::apply_network(code_transform, frozen_codebook);
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
  return narrow ? codes.to(at::kFloat) : detail::widened(codes);
}

torch::Tensor SimVQImpl::indices_to_codes(const torch::Tensor& indices) {
  return layout().place_features(in_half_dtype(decode_tokens(indices)));
}

torch::Tensor SimVQImpl::decode_tokens(const torch::Tensor& indices) {
  const auto every = codebook();
  const bool wide = every.scalar_type() == at::kDouble;
  const auto codes = ops::lookup_codes(every.to(wide ? at::kDouble : at::kFloat).unsqueeze(0),
                                       layout().split_indices(indices));
  return layout().join_heads(codes, indices.sizes());
}

// Forward -----------------------------------------------------------------------------------------

detail::Layout SimVQImpl::layout() const {
  return {.dim = options.dim(), .channel_first = options.channel_first(), .owner = "SimVQ"};
}

std::string SimVQImpl::estimator() const {
  return estimator(options.rotation_trick(), options.vqp_compat());
}

std::string SimVQImpl::estimator(bool rotation_trick, bool vqp_compat) const {
  if (!is_training()) return "none";
  if (!rotation_trick) return "straight_through";
  return vqp_compat ? "vqp_rotation_trick" : "rotation_trick";
}

std::optional<F::LinearLevel> SimVQImpl::linear_level(const torch::Tensor& tokens) const {
  const auto* linear = linear_layer(code_transform);
  if (linear == nullptr || !is_training()) return std::nullopt;
  const auto dtype = detail::compute_dtype(tokens);
  const auto& weight = linear->weight;
  // A layer of other sizes is left to the path that reports the error.
  const bool fits = weight.scalar_type() == dtype && frozen_codebook.scalar_type() == dtype &&
                    weight.size(0) == options.dim() && weight.size(1) == frozen_codebook.size(1);
  if (!fits) return std::nullopt;
  const auto [to_inputs, to_codes] = loss_weights();
  return F::LinearLevel{frozen_codebook, weight,
                        linear->bias.defined() ? OptionalTensor(linear->bias) : std::nullopt,
                        to_inputs, to_codes};
}

F::QuantizeOutput SimVQImpl::choose(const torch::Tensor& tokens, const OptionalTensor& mask,
                                    const std::string& estimator, const OptionalTensor& chosen) {
  if (const auto own = linear_level(tokens); own && !chosen) {
    return F::linear_quantize(tokens, own->frozen, own->weight, own->bias, mask, estimator);
  }
  // An argument that quantize() wants; nothing is drawn from it.
  const auto rng = at::zeros({2}, tokens.options().dtype(at::kLong).requires_grad(false));
  return F::quantize(tokens, codes_for(tokens.scalar_type()), rng, mask,
                     F::QuantizeOptions().estimator(estimator).chosen(chosen));
}

std::pair<double, double> SimVQImpl::loss_weights() const {
  const auto weight = options.commitment_weight();
  return {weight * options.input_to_quantize_commit_loss_weight(), weight};
}

torch::Tensor SimVQImpl::loss_of(const F::QuantizeOutput& result,
                                 const OptionalTensor& mask) const {
  const auto [to_inputs, to_codes] = loss_weights();
  return F::paired_loss(result.inputs, result.codes, mask, to_inputs, to_codes, is_training());
}

SimVQOutput SimVQImpl::forward(const torch::Tensor& x, const OptionalTensor& mask) {
  const auto places = layout();
  places.check_input(x);
  const auto token_mask = places.token_mask(x, mask, std::nullopt);
  if (const auto ranks = group(); !ranks.empty()) handshake(ranks);
  const auto tokens = places.pack(x, token_mask);
  const auto rows = places.split_mask(token_mask);
  const auto result = choose(places.split_heads(tokens), rows, estimator());
  const auto output = places.merge_features(result.quantized, tokens.size(0), tokens.size(1));
  return {detail::restore_output(output, x, token_mask, places, nullptr),
          places.restore_positions(result.indices, x), loss_of(result, rows)};
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
