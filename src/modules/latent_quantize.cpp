#include <torchvq/modules/latent_quantize.h>

#include <ostream>
#include <sstream>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <torchvq/distributed/replicas.h>
#include <torchvq/functional/latent_codes.h>
#include <torchvq/functional/vqp_compat.h>

#include "detail/checks.h"
#include "detail/precision.h"
#include "modules/copy_tensors.h"
#include "modules/in_place.h"
#include "modules/indices.h"
#include "modules/layout.h"
#include "modules/projection.h"
#include "modules/ranks.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

constexpr auto kLatentQuantize = "LatentQuantize";

detail::Layout layout_of(const LatentQuantizeOptions& options) {
  return {.dim = options.dim(), .channel_first = options.channel_first(), .owner = kLatentQuantize};
}

int64_t inner_dim(const LatentQuantizeOptions& options) {
  return static_cast<int64_t>(options.levels().size()) * options.num_codebooks();
}

/// The dtype of fixed values after a cast: never half precision, which would change them.
torch::Dtype wide(const torch::Tensor& own, torch::Dtype dtype) {
  return detail::is_half(dtype) ? own.scalar_type() : dtype;
}

}  // namespace

LatentQuantizeImpl::LatentQuantizeImpl(LatentQuantizeOptions options_)
    : options(std::move(options_)), handle_(distributed::new_handle()), built_from_(options) {
  reset();
}

void LatentQuantizeImpl::reset() {
  options.validate();
  const int64_t inner = inner_dim(options);
  if (inner != options.dim()) {
    project_in = register_module("project_in", torch::nn::Linear(options.dim(), inner));
    project_out = register_module("project_out", torch::nn::Linear(inner, options.dim()));
  }
  auto initial = F::latent_values(options.levels());
  const auto dtype = torch::get_default_dtype_as_scalartype();
  if (dtype == at::kDouble) {
    for (auto& own : initial) own = own.to(dtype);
  }
  if (!options.optimize_values()) {
    fixed_ = std::move(initial);
    return;
  }
  values_per_latent = register_module("values_per_latent", torch::nn::ParameterList());
  for (const auto& own : initial) {
    values_per_latent->append(own.clone().requires_grad_());
  }
  if (options.in_place_codebook_optimizer()) {
    set_in_place_optimizer(kLatentQuantize, options.in_place_codebook_optimizer()(values()));
  }
}

void LatentQuantizeImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::LatentQuantize(levels=" << at::IntArrayRef(options.levels())
         << ", dim=" << options.dim() << ", num_codebooks=" << options.num_codebooks() << ")";
}

std::shared_ptr<torch::nn::Module> LatentQuantizeImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<LatentQuantizeImpl>(built_from_);
  detail::copy_tensors(*this, *copy, device);
  copy->options = options;
  copy->fixed_ = fixed_;
  if (device) {
    for (auto& own : copy->fixed_) own = own.to(*device);
  }
  copy->copy_in_place_optimizer(*this);
  return copy;
}

void LatentQuantizeImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(device, dtype, non_blocking);
  note_cast(dtype);
  for (auto& own : fixed_) own = own.to(device, wide(own, dtype), non_blocking);
}

void LatentQuantizeImpl::to(torch::Dtype dtype, bool non_blocking) {
  torch::nn::Module::to(dtype, non_blocking);
  note_cast(dtype);
  for (auto& own : fixed_) own = own.to(wide(own, dtype), non_blocking);
}

void LatentQuantizeImpl::to(torch::Device device, bool non_blocking) {
  torch::nn::Module::to(device, non_blocking);
  for (auto& own : fixed_) own = own.to(device, own.scalar_type(), non_blocking);
}

void LatentQuantizeImpl::save(torch::serialize::OutputArchive& archive) const {
  torch::nn::Module::save(archive);
  save_in_place_optimizer(archive);
}

void LatentQuantizeImpl::load(torch::serialize::InputArchive& archive) {
  const auto state = read_in_place_optimizer(archive);
  CheckedLoad<LatentQuantizeImpl>::load(archive);
  load_in_place_optimizer_state(state);
}

std::vector<torch::Tensor> LatentQuantizeImpl::values() const {
  if (!values_per_latent) {
    return fixed_;
  }
  return values_per_latent->parameters();
}

int64_t LatentQuantizeImpl::codebook_size() const {
  return c10::multiply_integers(options.levels());
}

bool LatentQuantizeImpl::keeps_codebook_axis() const {
  return options.keep_num_codebooks_dim().value_or(false) || options.num_codebooks() > 1;
}

// Forward -----------------------------------------------------------------------------------------

void LatentQuantizeImpl::handshake(const torch::Tensor& latents,
                                   const distributed::SyncOptions& ranks) const {
  distributed::HandshakeOptions call;
  static_cast<distributed::SyncOptions&>(call) = ranks;
  call.handle = handle_;
  std::ostringstream text;
  text << detail::tokens_text(latents.scalar_type()) << "; LatentQuantize of levels "
       << at::IntArrayRef(options.levels()) << ", own optimizer " << in_place_optimizer_text();
  call.signature = text.str();
  std::vector<torch::Tensor> state;
  for (const auto& own : values()) state.push_back(own.detach());
  distributed::handshake_(state, call);
}

std::vector<torch::Tensor> LatentQuantizeImpl::values_of_step(const torch::Tensor& latents,
                                                              const OptionalTensor& mask) {
  auto own = values();
  for (auto& one : own) {
    one = one.to(latents.device());
  }
  if (learns_in_place() && is_training()) {
    distributed::Ranks ranks;
    ranks.group_name = distributed::default_group();
    ranks.label = kLatentQuantize;
    if (!ranks.alone()) handshake(latents, ranks);
    const c10::InferenceMode no_inference(false);
    at::AutoGradMode enable_grad(true);
    const auto backward = [&] {
      const auto target = detail::target_of(latents);
      F::latent_quantize(target, own, /*commitment=*/0, /*quantization=*/1, mask).loss.backward();
      const auto rows = target.reshape({1, -1, static_cast<int64_t>(options.levels().size())});
      return target.scalar_type() == at::kDouble ? rows : rows.to(at::kFloat);
    };
    const auto row_mask = mask ? OptionalTensor(mask->reshape({1, -1})) : std::nullopt;
    detail::step_own_optimizer(*this, /*manual=*/false, own, backward, row_mask, ranks);
  } else if (!options.vqp_compat()) {
    return own;
  }
  for (auto& one : own) {
    one = one.detach();
  }
  return own;
}

LatentQuantizeOutput LatentQuantizeImpl::forward(const torch::Tensor& z,
                                                 const OptionalTensor& mask) {
  const auto layout = layout_of(options);
  layout.check_input(z, "z");
  const auto token_mask = layout.token_mask(z, mask, std::nullopt);
  const auto tokens = layout.pack(z, token_mask);
  const auto latents =
      detail::apply_linear(project_in, tokens)
          .unflatten(-1, {options.num_codebooks(), static_cast<int64_t>(options.levels().size())});
  OptionalTensor code_mask;
  if (token_mask) {
    code_mask = token_mask->unsqueeze(-1).expand(
        latents.sizes().slice(0, static_cast<size_t>(latents.dim() - 1)));
  }
  const bool learns = is_training(), compat = options.vqp_compat();
  const double commitment = options.commitment_loss_weight();
  const double quantization = options.quantization_loss_weight();
  auto found = F::latent_quantize(latents, values_of_step(latents, code_mask),
                                  learns && !compat ? commitment : 0,
                                  learns && !compat ? quantization : 0, code_mask);
  const auto output = detail::apply_linear(project_out, found.codes.flatten(2));
  if (learns && compat) {
    found.loss = F::vqp_latent_loss(tokens, output, commitment, quantization, token_mask);
  }
  auto indices = keeps_codebook_axis() ? found.indices : found.indices.squeeze(-1);
  if (compat) {
    indices = F::vqp_indices(indices, codebook_size());
  }
  return {detail::restore_output(output, z, token_mask, layout, nullptr),
          layout.unpack_positions(indices, z), learns ? found.loss : at::zeros_like(found.loss)};
}

// Codes -------------------------------------------------------------------------------------------

torch::Tensor LatentQuantizeImpl::quantize(const torch::Tensor& z) const {
  return F::latent_quantize(z, values()).codes;
}

torch::Tensor LatentQuantizeImpl::codes_to_indices(const torch::Tensor& zhat) const {
  detail::check_defined(kLatentQuantize, "zhat", zhat);
  const auto indices = F::latent_quantize(zhat.detach(), values()).indices;
  return options.vqp_compat() ? F::vqp_indices(indices, codebook_size()) : indices;
}

torch::Tensor LatentQuantizeImpl::indices_to_codes(const torch::Tensor& indices,
                                                   bool with_projection) {
  const auto whole = detail::as_int64(kLatentQuantize, indices);
  const auto stacked = keeps_codebook_axis() ? whole : whole.unsqueeze(-1);
  TORCH_CHECK_VALUE(stacked.dim() >= 2 && stacked.size(-1) == options.num_codebooks(),
                    kLatentQuantize, ": expected indices to have shape (B, *) and ",
                    options.num_codebooks(), " codebooks, but got shape ", indices.sizes());
  auto codes = F::latent_decode(stacked, values()).flatten(-2);
  codes = with_projection ? detail::project_decoded(project_out, codes, stacked, *this)
                          : in_half_dtype(codes);
  return layout_of(options).place_features(codes);
}

torch::Tensor LatentQuantizeImpl::commitment_loss(const torch::Tensor& z,
                                                  const torch::Tensor& zhat) const {
  // In the reference, the two losses are swapped: each moves the side that the other should move.
  if (options.vqp_compat()) return F::latent_quantization_loss(z, zhat);
  return F::latent_commitment_loss(z, zhat);
}

torch::Tensor LatentQuantizeImpl::quantization_loss(const torch::Tensor& z,
                                                    const torch::Tensor& zhat) const {
  if (options.vqp_compat()) return F::latent_commitment_loss(z, zhat);
  return F::latent_quantization_loss(z, zhat);
}

}  // namespace torchvq
