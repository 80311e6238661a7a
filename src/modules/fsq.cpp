#include <torchvq/modules/fsq.h>

#include <ostream>

#include <ATen/ops/arange.h>

#include <torchvq/functional/layout.h>
#include <torchvq/functional/quantize_scalars.h>
#include <torchvq/functional/rotate_features.h>
#include <torchvq/functional/vqp_compat.h>
#include <torchvq/ops/advance_rng_.h>
#include <torchvq/ops/scalar_decode.h>
#include <torchvq/ops/scalar_quantize.h>

#include "detail/checks.h"
#include "modules/copy_tensors.h"
#include "modules/indices.h"
#include "modules/layout.h"
#include "modules/projection.h"
#include "modules/random_state.h"

namespace torchvq {

namespace F = functional;

namespace {

bool features_first(const FSQOptions& options, int64_t axes) {
  const bool map = axes >= 4;
  return options.vqp_compat() ? options.channel_first().value_or(false) || map
                              : options.channel_first().value_or(map);
}

/// The layout of inputs with this number of axes.
detail::Layout layout_of(const FSQImpl& fsq, int64_t axes) {
  return {.dim = fsq.dim(), .channel_first = features_first(fsq.options, axes), .owner = "FSQ"};
}

torch::Tensor as_returned(const FSQImpl& fsq, const torch::Tensor& indices) {
  return fsq.options.vqp_compat() ? F::vqp_indices(indices, fsq.codebook_size()) : indices;
}

torch::Tensor codes_of(const FSQImpl& fsq, const torch::Tensor& z, const char* bound) {
  return ops::scalar_quantize(z, fsq.options.levels(), bound).first;
}

std::optional<torch::Tensor> rotation_of(const FSQImpl& fsq) {
  return fsq.orthogonal_rot.defined() ? std::optional(fsq.orthogonal_rot) : std::nullopt;
}

F::QuantizeScalarsOptions scalar_options(const FSQImpl& fsq,
                                         const std::optional<torch::Tensor>& mask,
                                         const std::optional<torch::Tensor>& noise_rng) {
  return F::QuantizeScalarsOptions()
      .codebooks(fsq.options.num_codebooks())
      .bound(fsq.bound_name())
      .rotation(rotation_of(fsq))
      .rng(noise_rng)
      .noise(fsq.options.noise_dropout())
      .mask(mask)
      .vqp_noise(fsq.options.vqp_compat());
}

F::QuantizeScalarsOutput without_projections(const FSQImpl& fsq, const torch::Tensor& z,
                                             const std::optional<torch::Tensor>& mask,
                                             const std::optional<torch::Tensor>& noise_rng,
                                             const detail::Layout& layout) {
  return F::finite_scalar_quantize(z, fsq.options.levels(), scalar_options(fsq, mask, noise_rng),
                                   layout.channel_first, fsq.keeps_codebook_axis());
}

F::QuantizeScalarsOutput between_projections(const FSQImpl& fsq, const torch::Tensor& z,
                                             const std::optional<torch::Tensor>& mask,
                                             const std::optional<torch::Tensor>& noise_rng,
                                             const detail::Layout& layout) {
  const auto tokens = detail::apply_linear(fsq.project_in, layout.pack(z, mask));
  const auto found = fsq.quantize_tokens(tokens, std::nullopt, mask, noise_rng);
  const auto indices = fsq.keeps_codebook_axis() ? found.indices : found.indices.squeeze(-1);
  return {detail::restore_output(found.quantized, z, mask, layout, fsq.project_out),
          layout.unpack_positions(indices, z)};
}

}  // namespace

FSQImpl::FSQImpl(FSQOptions options_, bool owns_rng)
    : options(std::move(options_)), built_from_(options), owns_rng_(owns_rng) {
  reset();
}

void FSQImpl::reset() {
  options.validate();
  const auto inner = effective_codebook_dim();
  if (dim() != inner) {
    const bool bias = options.projection_has_bias();
    project_in = register_module(
        "project_in", torch::nn::Linear(torch::nn::LinearOptions(dim(), inner).bias(bias)));
    project_out = register_module(
        "project_out", torch::nn::Linear(torch::nn::LinearOptions(inner, dim()).bias(bias)));
  }
  if (options.orthogonal_rotation()) {
    orthogonal_rot = register_buffer("orthogonal_rot", F::random_rotation(codebook_dim()));
  }
  if (options.noise_dropout() > 0 && owns_rng_) {
    rng = register_buffer("rng", detail::fresh_rng());
  }
}

void FSQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::FSQ(levels=" << at::IntArrayRef(options.levels()) << ", dim=" << dim()
         << ", num_codebooks=" << options.num_codebooks() << ")";
}

std::shared_ptr<torch::nn::Module> FSQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<FSQImpl>(built_from_, owns_rng_);
  detail::copy_tensors(*this, *copy, device);
  copy->options = options;
  return copy;
}

// Forward -----------------------------------------------------------------------------------------

ScalarOutput FSQImpl::forward(const torch::Tensor& z, const std::optional<torch::Tensor>& mask) {
  const auto layout = layout_of(*this, z.dim());
  layout.check_input(z, "z");
  const auto token_mask = layout.token_mask(z, mask, std::nullopt);
  const bool noisy = is_training() && options.noise_dropout() > 0;
  TORCH_CHECK_VALUE(!noisy || rng.defined(),
                    "FSQ: expected noise_dropout to be given to the constructor, which makes the "
                    "generator of the noise, but got set on the module");
  const auto noise_rng = noisy ? std::optional(detail::rng_of_rank(rng)) : std::nullopt;
  auto [quantized, indices] = project_in
                                  ? between_projections(*this, z, token_mask, noise_rng, layout)
                                  : without_projections(*this, z, token_mask, noise_rng, layout);
  if (noisy) {
    ops::advance_rng_(rng);
  }
  if (!options.return_indices()) {
    return {quantized, {}};
  }
  return {quantized, as_returned(*this, indices)};
}

ScalarOutput FSQImpl::quantize_tokens(const torch::Tensor& tokens,
                                      const std::optional<torch::Tensor>& scale,
                                      const std::optional<torch::Tensor>& mask,
                                      const std::optional<torch::Tensor>& noise_rng,
                                      int64_t stream) const {
  auto found = F::quantize_scalars(
      tokens, options.levels(), scalar_options(*this, mask, noise_rng).scale(scale).stream(stream));
  return {found.codes, found.indices};
}

std::string FSQImpl::bound_name() const {
  const std::string name = options.bound_hard_clamp() ? "clamp" : "tanh";
  return options.preserve_symmetry() ? "symmetric_" + name : name;
}

torch::Tensor FSQImpl::quantize(const torch::Tensor& z) const {
  return codes_of(*this, z, bound_name().c_str());
}

torch::Tensor FSQImpl::bound(const torch::Tensor& z, bool hard_clamp) const {
  return codes_of(*this, z, hard_clamp ? "clamp" : "tanh");
}

torch::Tensor FSQImpl::symmetry_preserving_bound(const torch::Tensor& z, bool hard_clamp) const {
  return codes_of(*this, z, hard_clamp ? "symmetric_clamp" : "symmetric_tanh");
}

// Codes -------------------------------------------------------------------------------------------

int64_t FSQImpl::codebook_size() const { return c10::multiply_integers(options.levels()); }

torch::Tensor FSQImpl::codes_to_indices(const torch::Tensor& zhat) const {
  return as_returned(*this,
                     ops::scalar_code_indices(zhat, options.levels(), options.preserve_symmetry()));
}

torch::Tensor FSQImpl::indices_to_level_indices(const torch::Tensor& indices) const {
  const auto levels = ops::scalar_level_indices(detail::as_int64("FSQ", indices), options.levels());
  return options.vqp_compat() ? F::vqp_levels(levels, indices) : levels;
}

torch::Tensor FSQImpl::indices_to_codes(const torch::Tensor& indices) {
  const auto whole = detail::as_int64("FSQ", indices);
  const auto stacked = keeps_codebook_axis() ? whole : whole.unsqueeze(-1);
  TORCH_CHECK_VALUE(stacked.dim() >= 1 && stacked.size(-1) == options.num_codebooks(),
                    "FSQ: expected indices to have shape (*, ", options.num_codebooks(),
                    "), but got ", indices.sizes());
  const auto output = detail::project_decoded(project_out, decode_tokens(stacked), stacked, *this);
  return layout_of(*this, output.dim()).place_features(output);
}

torch::Tensor FSQImpl::decode_tokens(const torch::Tensor& indices,
                                     const std::optional<torch::Tensor>& scale) const {
  const bool wide = (scale && scale->scalar_type() == at::kDouble) ||
                    detail::decoding_dtype(project_out, orthogonal_rot) == at::kDouble;
  return F::decode_scalars(detail::as_int64("FSQ", indices), options.levels(),
                           options.preserve_symmetry(), rotation_of(*this), scale,
                           wide ? at::kDouble : at::kFloat);
}

torch::Tensor FSQImpl::implicit_codebook() const {
  const auto device = project_in ? project_in->weight.device() : at::Device(at::kCPU);
  const auto every = at::arange(codebook_size(), at::device(device).dtype(at::kLong));
  return ops::scalar_decode(every, options.levels(), options.preserve_symmetry());
}

}  // namespace torchvq
