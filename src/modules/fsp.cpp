#include <torchvq/modules/fsp.h>

#include <functional>
#include <ios>
#include <numeric>
#include <ostream>
#include <sstream>
#include <utility>

#include <torchvq/distributed/ranks.h>
#include <torchvq/distributed/replicas.h>
#include <torchvq/functional/decode.h>
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

#include "functional/vector_norm.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

int64_t features_of(const FSPOptions& options) {
  return static_cast<int64_t>(options.levels().size());
}

torch::Tensor as_returned(const FSPOptions& options, const torch::Tensor& indices) {
  const auto& levels = options.levels();
  const auto size = std::accumulate(levels.begin(), levels.end(), int64_t{1}, std::multiplies<>());
  return options.vqp_compat() ? F::vqp_indices(indices, size) : indices;
}

detail::Layout layout_of(const FSPOptions& options) {
  return {.dim = options.dim().value_or(features_of(options)),
          .heads = 1,
          .separate = false,
          .channel_first = options.channel_first(),
          .map_rank = 0,
          .owner = "FSP"};
}

}  // namespace

FSPImpl::FSPImpl(FSPOptions options_)
    : options(std::move(options_)), handle_(distributed::new_handle()) {
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
  auto copy = std::make_shared<FSPImpl>(options);
  detail::copy_tensors(*this, *copy, device);
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
       << options.quantize_rate() << ", norm " << options.vector_norm();
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
  detail::check_defined("FSP", "x", z);
  const bool alone = z.dim() == 1 && !options.channel_first();
  const auto x = alone ? z.unsqueeze(0) : z;
  const auto own = [&](const torch::Tensor& values) { return alone ? values.squeeze(0) : values; };
  const auto layout = layout_of(options);
  layout.check_input(x);
  const auto token_mask = layout.token_mask(x, call.mask(), std::nullopt);
  // Before the generator advances.
  TORCH_CHECK_VALUE(call.eps() > 0 && call.eps() < 0.5,
                    "FSP: expected eps to be in (0, 1/2), but got ", call.eps());
  auto latents = layout.pack(x);
  if (token_mask) {
    latents = F::fill_masked(latents, *token_mask);
  }
  if (project_in) {
    latents = detail::apply_linear(project_in, latents);
  }
  if (const auto shared = ranks(); !shared.group_name.empty()) handshake(latents, shared);
  // Before the generator advances, because another rank may be lost.
  const auto moments = norm(latents, token_mask);
  OptionalTensor draws;
  if (is_training() && options.quantize_rate() < 1) {
    draws = take_rng(latents, token_mask, ranks().group_name);
  }
  const auto found = ops::scalar_perturb(latents, options.levels(), draws, options.quantize_rate(),
                                         perturbation(call.eps()), token_mask);
  auto output = project_out ? detail::apply_linear(project_out, found.codes) : found.codes;
  output = output.to(x.scalar_type());
  if (token_mask) {
    output = F::fill_padding(output, *token_mask);
  }
  const auto place = [&](const torch::Tensor& values) {
    return F::unpack_positions(values, x.sym_sizes(), options.channel_first());
  };
  const auto dtype = found.codes.scalar_type();
  const auto statistic = [&](const torch::Tensor& value) { return value.to(dtype); };
  const auto indices = as_returned(options, place(found.indices));
  return {own(layout.unpack(output, x)),
          own(indices),
          moments.loss.to(dtype),
          own(place(found.level_indices)),
          statistic(moments.mean),
          statistic(moments.variance),
          statistic(moments.skewness),
          statistic(moments.kurtosis),
          found.acceptance};
}

torch::Tensor FSPImpl::indices_to_codes(const torch::Tensor& indices, double eps) {
  const auto whole = detail::as_int64("FSP", indices);
  const bool wide = project_out && project_out->weight.scalar_type() == at::kDouble;
  auto codes = ops::scalar_centroids(whole, options.levels(), perturbation(eps),
                                     wide ? at::kDouble : at::kFloat);
  if (project_out) {
    // The output of masked tokens is 0; the bias of the projection would change it.
    codes = F::zero_absent(detail::apply_linear(project_out, codes), whole);
  }
  return options.channel_first() && whole.dim() > 0 ? codes.movedim(-1, 1) : codes;
}

torch::Tensor FSPImpl::indices_to_act_value(const torch::Tensor& indices) const {
  return ops::scalar_centroids(detail::as_int64("FSP", indices), options.levels(),
                               {options.act_name(), "act", 1e-6});
}

torch::Tensor FSPImpl::indices_to_level_indices(const torch::Tensor& indices) const {
  return ops::scalar_level_indices(detail::as_int64("FSP", indices), options.levels());
}

torch::Tensor FSPImpl::level_indices_to_indices(const torch::Tensor& level_indices) const {
  return as_returned(options,
                     ops::scalar_indices(detail::as_int64("FSP", level_indices), options.levels()));
}

}  // namespace torchvq
