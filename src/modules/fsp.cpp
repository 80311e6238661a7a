#include <torchvq/modules/fsp.h>

#include <ios>
#include <ostream>
#include <sstream>
#include <utility>

#include <torchvq/distributed/ranks.h>
#include <torchvq/distributed/replicas.h>
#include <torchvq/functional/layout.h>
#include <torchvq/functional/vqp_compat.h>
#include <torchvq/ops/scalar_decode.h>
#include <torchvq/ops/token_moment_loss.h>

#include <torchvq/functional/shared_moments.h>
#include "detail/checks.h"
#include "modules/copy_tensors.h"
#include "modules/indices.h"
#include "modules/layout.h"
#include "modules/projection.h"
#include "modules/ranks.h"
#include "options/text.h"

#include "functional/vector_norm.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

int64_t features_of(const FSPOptions& options) {
  return static_cast<int64_t>(options.levels().size());
}

torch::Tensor as_returned(const FSPOptions& options, const torch::Tensor& indices) {
  return options.vqp_compat() ? F::vqp_indices(indices, c10::multiply_integers(options.levels()))
                              : indices;
}

detail::Layout layout_of(const FSPOptions& options) {
  return {.dim = options.dim().value_or(features_of(options)),
          .channel_first = options.channel_first(),
          .owner = "FSP"};
}

}  // namespace

FSPImpl::FSPImpl(FSPOptions options_)
    : options(std::move(options_)), handle_(distributed::new_handle()), built_from_(options) {
  reset();
}

void FSPImpl::reset() {
  options.validate();
  register_rng(*this);
  const int64_t features = features_of(options), dim = options.dim().value_or(features);
  if (dim != features) {
    const auto linear = [&](int64_t in, int64_t out) {
      return torch::nn::Linear(
          torch::nn::LinearOptions(in, out).bias(options.projection_has_bias()));
    };
    project_in = register_module("project_in", linear(dim, features));
    project_out = register_module("project_out", linear(features, dim));
  }
}

void FSPImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::FSP(levels=" << at::IntArrayRef(options.levels())
         << ", act_name=" << options.act_name() << ", vector_norm=" << options.vector_norm() << ")";
}

std::shared_ptr<torch::nn::Module> FSPImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<FSPImpl>(built_from_);
  detail::copy_tensors(*this, *copy, device);
  copy->options = options;
  return copy;
}

distributed::SyncOptions FSPImpl::ranks() const {
  distributed::SyncOptions found;
  if (is_training() && options.sync_statistics().value_or(!options.vqp_compat())) {
    found.group_name = options.process_group().value_or(distributed::default_group());
    found.label = "FSP";
  }
  return found;
}

void FSPImpl::handshake(const torch::Tensor& latents, const distributed::SyncOptions& ranks) const {
  distributed::HandshakeOptions call;
  static_cast<distributed::SyncOptions&>(call) = ranks;
  call.handle = handle_;
  std::ostringstream text;
  text << std::boolalpha << "FSP of levels " << at::IntArrayRef(options.levels()) << ", "
       << options.act_name() << ", inverse " << options.need_inv_act() << ", rate "
       << detail::option_text(options.quantize_rate()) << ", norm " << options.vector_norm();
  call.signature = text.str();
  distributed::handshake_({detail::on_device_of(latents)}, call);
}

ops::PerturbOptions FSPImpl::perturbation(double eps) const {
  return {options.act_name(), options.need_inv_act() ? "inverse" : "unit", eps};
}

ops::MomentLoss FSPImpl::norm(const torch::Tensor& latents, const OptionalTensor& mask) const {
  const auto seen = is_training() ? latents : latents.detach();
  const auto wanted = F::vector_norm(options.vector_norm());
  const auto shared = ranks();
  if (shared.group_name.empty()) return ops::token_moment_loss(seen, wanted, mask);
  const auto moments = ops::token_moments(seen, mask);
  return ops::moment_loss(F::attach_moments(F::gather_moments(moments, shared), moments, shared),
                          wanted);
}

FSPOutput FSPImpl::forward(const torch::Tensor& z, const FSPForwardOptions& call) {
  detail::check_defined("FSP", "z", z);
  const bool alone = z.dim() == 1 && !options.channel_first();
  const auto x = alone ? z.unsqueeze(0) : z;
  const auto without_axis = [&](const torch::Tensor& values) {
    return alone ? values.squeeze(0) : values;
  };
  const auto layout = layout_of(options);
  layout.check_input(x, "z");
  const auto token_mask = layout.token_mask(x, call.mask(), std::nullopt);
  // Checked first: a rejected call leaves the generator unchanged.
  TORCH_CHECK_VALUE(call.eps() > 0 && call.eps() < 0.5,
                    "FSP: expected eps to be in (0, 1/2), but got ", call.eps());
  const auto latents = detail::apply_linear(project_in, layout.pack(x, token_mask));
  if (const auto shared = ranks(); !shared.group_name.empty()) handshake(latents, shared);
  // The ranks agree before the generator advances: if one is lost, the state is unchanged.
  const auto moments = norm(latents, token_mask);
  OptionalTensor draws;
  if (is_training() && options.quantize_rate() < 1) {
    draws = take_rng(latents, token_mask, ranks().group_name);
  }
  const auto found = ops::scalar_perturb(latents, options.levels(), draws, options.quantize_rate(),
                                         perturbation(call.eps()), token_mask);
  const auto dtype = found.codes.scalar_type();
  const auto statistic = [&](const torch::Tensor& value) { return value.to(dtype); };
  const auto indices = as_returned(options, layout.unpack_positions(found.indices, x));
  return {without_axis(detail::restore_output(found.codes, x, token_mask, layout, project_out)),
          without_axis(indices),
          moments.loss.to(dtype),
          without_axis(layout.unpack_positions(found.level_indices, x)),
          statistic(moments.mean),
          statistic(moments.variance),
          statistic(moments.skewness),
          statistic(moments.kurtosis),
          found.acceptance};
}

torch::Tensor FSPImpl::indices_to_codes(const torch::Tensor& indices, double eps) {
  const auto whole = detail::as_int64("FSP", indices);
  const auto codes = ops::scalar_centroids(whole, options.levels(), perturbation(eps),
                                           detail::decoding_dtype(project_out));
  return layout_of(options).place_features(
      detail::project_decoded(project_out, codes, whole, *this));
}

torch::Tensor FSPImpl::indices_to_act_value(const torch::Tensor& indices) const {
  return ops::scalar_centroids(detail::as_int64("FSP", indices), options.levels(),
                               {options.act_name(), "act", 1e-6});
}

torch::Tensor FSPImpl::indices_to_level_indices(const torch::Tensor& indices) const {
  const auto levels = ops::scalar_level_indices(detail::as_int64("FSP", indices), options.levels());
  return options.vqp_compat() ? F::vqp_levels(levels, indices) : levels;
}

torch::Tensor FSPImpl::level_indices_to_indices(const torch::Tensor& level_indices) const {
  return as_returned(options,
                     ops::scalar_indices(detail::as_int64("FSP", level_indices), options.levels()));
}

}  // namespace torchvq
