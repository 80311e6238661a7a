#include <torchvq/modules/hierarchical_vq.h>

#include <algorithm>
#include <cmath>
#include <ios>
#include <ostream>
#include <sstream>
#include <utility>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/modulelist.h>

#include <torchvq/functional/layout.h>
#include <torchvq/functional/scales.h>
#include <torchvq/ops/lookup_codes.h>

#include "detail/checks.h"
#include "detail/precision.h"
#include "detail/without_autocast.h"
#include "modules/call_checks.h"
#include "modules/copy_tensors.h"
#include "modules/indices.h"
#include "modules/layout.h"
#include "modules/messages.h"
#include "modules/ranks.h"
#include "modules/scale_walk.h"
#include "modules/stats.h"
#include "modules/undo.h"
#include "options/text.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

constexpr auto kHierarchicalVQ = "HierarchicalVQ";
constexpr int64_t kScaleKernel = 3;

detail::Layout scale_layout(const HierarchicalVQOptions& options) {
  return {.dim = options.dim(), .channel_first = options.channel_first(), .owner = kHierarchicalVQ};
}

std::vector<int64_t> positions_of(const HierarchicalVQOptions& options, const torch::Tensor& x) {
  const auto sizes = x.sizes();
  return options.channel_first() ? sizes.slice(2).vec() : sizes.slice(1, sizes.size() - 2).vec();
}

std::vector<int64_t> with_batch(int64_t batch, at::IntArrayRef positions) {
  std::vector<int64_t> shape{batch};
  shape.insert(shape.end(), positions.begin(), positions.end());
  return shape;
}

/// The options besides those of the levels in which all ranks must agree, as text.
std::string scales_signature(const HierarchicalVQImpl& hvq,
                             const std::vector<VectorQuantizeImpl*>& levels,
                             std::optional<bool> frozen) {
  const auto& options = hvq.options;
  // A call that freezes all scales sends nothing, and has the text of an ordinary call, so that a
  // rank may make it alone.
  if (frozen.value_or(false)) frozen.reset();
  std::ostringstream text;
  text << std::boolalpha << "HierarchicalVQ of scales";
  for (const auto& shape : hvq.resolved().shapes) text << " " << at::IntArrayRef(shape);
  text << ", shared " << options.shared_codebook() << ", dropout "
       << detail::option_text(options.nested_dropout()) << " from "
       << options.nested_dropout_min_levels() << ", frozen scales"
       << detail::numbers_of(levels, [&](const VectorQuantizeImpl& vq) {
            return detail::freezes(hvq, vq, frozen);
          });
  return text.str();
}

/// Ranks compare options and state before anything is drawn or written.
void agree_on_scales(const HierarchicalVQImpl& hvq, const std::vector<VectorQuantizeImpl*>& levels,
                     const std::vector<Codebook>& codebooks, std::optional<bool> frozen,
                     at::ScalarType dtype, const distributed::Ranks& ranks) {
  const auto freezes = [&](const VectorQuantizeImpl* vq) {
    return detail::freezes(hvq, *vq, frozen);
  };
  detail::agree_in_stack({.levels = levels,
                          .codebooks = codebooks,
                          .signature = scales_signature(hvq, levels, frozen),
                          .frozen = std::all_of(levels.begin(), levels.end(), freezes),
                          .dtype = dtype},
                         ranks);
}

/// The indices of each scale in its shape; -1 for dropped scales.
std::vector<torch::Tensor> indices_of_scales(const HierarchicalVQImpl& hvq,
                                             const std::vector<F::StepTokens>& searched,
                                             int64_t batch) {
  std::vector<torch::Tensor> indices;
  for (const auto& positions : hvq.resolved().shapes) {
    const auto shape = with_batch(batch, positions);
    const bool dropped = indices.size() >= searched.size();
    indices.push_back(dropped ? at::full(shape, -1, searched[0].indices.options())
                              : searched[indices.size()].indices.view(shape));
  }
  return indices;
}

/// Reshapes (B, N) to (B, *S). An input without positions has no real tokens.
OptionalTensor map_mask(const HierarchicalVQOptions& options, const torch::Tensor& x,
                        const OptionalTensor& mask) {
  const auto positions = positions_of(options, x);
  const auto shape = with_batch(x.size(0), positions);
  if (mask) return mask->view(shape);
  const bool empty = std::find(positions.begin(), positions.end(), 0) != positions.end();
  if (x.size(0) == 0 || !empty) return std::nullopt;
  return at::ones(shape, x.options().dtype(at::kBool).requires_grad(false));
}

/// The number of scales that this forward uses.
int64_t scales_in_use(const HierarchicalVQImpl& hvq) {
  const auto& options = hvq.options;
  if (!hvq.is_training() || options.nested_dropout() <= 0) return hvq.num_levels();
  return F::drawn_scales(hvq.get_vq(0).codebook_state->rng, hvq.num_levels(),
                         options.nested_dropout(), options.nested_dropout_min_levels())
      .item<int64_t>();
}

torch::Tensor restore_rows(const HierarchicalVQOptions& options, const torch::Tensor& output,
                           const torch::Tensor& x, const OptionalTensor& mask) {
  auto tokens = output.to(x.scalar_type());
  if (mask) tokens = F::fill_padding(tokens.contiguous(), *mask);
  return scale_layout(options).unpack(tokens, x).contiguous();  // callers take views of it
}

}  // namespace

// Convolutions ------------------------------------------------------------------------------------

ScaleConvolutionImpl::ScaleConvolutionImpl(int64_t dim, int64_t axes) : dim_(dim), axes_(axes) {
  reset();
}

void ScaleConvolutionImpl::reset() {
  std::vector<int64_t> shape(axes_ + 2, kScaleKernel);
  shape[0] = shape[1] = dim_;
  weight = register_parameter("weight", torch::empty(shape));
  bias = register_parameter("bias", torch::empty({dim_}));
  torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
  const auto inputs = static_cast<double>(weight[0].numel());
  torch::nn::init::uniform_(bias, -1 / std::sqrt(inputs), 1 / std::sqrt(inputs));
}

ScalePhiImpl::ScalePhiImpl(int64_t dim, int64_t axes, double ratio)
    : dim_(dim), axes_(axes), ratio_(ratio) {
  reset();
}

void ScalePhiImpl::reset() { conv = register_module("conv", ScaleConvolution(dim_, axes_)); }

torch::Tensor ScalePhiImpl::forward(const torch::Tensor& tokens, at::IntArrayRef shape,
                                    at::IntArrayRef full) {
  return F::spread_scale(tokens, shape, c10::fromIntArrayRefSlow(full), conv->weight, conv->bias,
                         ratio_);
}

// Construction ------------------------------------------------------------------------------------

HierarchicalVQImpl::HierarchicalVQImpl(HierarchicalVQOptions options_)
    : options(std::move(options_)), built_from_(options) {
  reset();
}

void HierarchicalVQImpl::reset() {
  resolved_ = options.validate();
  vqs.clear();
  phis.clear();
  step_counts.clear();
  if (options.shared_codebook()) {
    vqs.emplace_back(register_module("vq", VectorQuantize(options.vq(resolved_.sizes[0]))));
  } else {
    const auto list = register_module("vqs", torch::nn::ModuleList());
    for (const auto size : resolved_.sizes) {
      vqs.emplace_back(options.vq(size));
      list->push_back(vqs.back());
    }
  }
  const auto make = [&] {
    return ScalePhi(options.dim(), options.spatial_dims(), std::abs(options.quant_resi()));
  };
  if (options.share_quant_resi() == 1) {
    phis.emplace_back(register_module("phi_shared", make()));
    return;
  }
  const auto list = register_module("phi_levels", torch::nn::ModuleList());
  const auto last = *std::max_element(resolved_.convolutions.begin(), resolved_.convolutions.end());
  for (int64_t index = 0; index <= last; ++index) {
    phis.push_back(make());
    list->push_back(phis.back());
  }
}

void HierarchicalVQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::HierarchicalVQ(dim=" << options.dim() << ", scales=" << num_levels()
         << ", codebook_size=" << resolved_.sizes[0] << ")";
}

std::shared_ptr<torch::nn::Module> HierarchicalVQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<HierarchicalVQImpl>(built_from_);
  detail::check_number_of("vqs", vqs.size(), copy->vqs.size());
  detail::copy_tensors(*this, *copy, device);
  for (size_t index = 0; index < vqs.size(); ++index) {
    copy->vqs[index]->copy_level(*vqs[index], device);
  }
  copy->options = options;
  copy->step_counts = step_counts;
  return copy;
}

void HierarchicalVQImpl::load(torch::serialize::InputArchive& archive) {
  CheckedLoad<HierarchicalVQImpl>::load(archive);
  step_counts.clear();
  for (const auto& vq : vqs) vq.ptr()->step_counts.reset();
}

VectorQuantizeImpl& HierarchicalVQImpl::get_vq(int64_t scale) const {
  return *vqs.at(vqs.size() == 1 ? 0 : scale).ptr();
}

ScalePhi HierarchicalVQImpl::choose_phi(int64_t scale) const {
  return phis.at(resolved_.convolutions.at(scale));
}

// Forward -----------------------------------------------------------------------------------------

void HierarchicalVQImpl::check_input(const torch::Tensor& x) const {
  scale_layout(options).check_input(x);
  TORCH_CHECK_VALUE(x.dim() == options.spatial_dims() + 2, "HierarchicalVQ: expected x to have ",
                    options.spatial_dims(), " axes of positions, but got shape ", x.sizes());
}

std::vector<torch::Tensor> HierarchicalVQImpl::checked_indices(
    const std::vector<torch::Tensor>& indices, int64_t batch) const {
  std::vector<torch::Tensor> whole;
  bool fits = static_cast<int64_t>(indices.size()) == num_levels();
  for (int64_t scale = 0; fits && scale < num_levels(); ++scale) {
    whole.push_back(detail::as_int64(kHierarchicalVQ, indices[scale]));
    fits = indices[scale].sizes() == at::IntArrayRef(with_batch(batch, resolved_.shapes[scale]));
  }
  TORCH_CHECK_VALUE(fits, "HierarchicalVQ: expected indices to be tensors of the shapes (", batch,
                    ", *shape) of ", num_levels(), " scales, but got ", indices.size(),
                    " tensors of other shapes");
  return whole;
}

std::vector<torch::Tensor> HierarchicalVQImpl::checked_targets(
    const torch::Tensor& x, const HierarchicalVQForwardOptions& call) const {
  if (!call.indices()) return {};
  auto targets = checked_indices(*call.indices(), x.size(0));
  for (int64_t scale = 0; scale < num_levels(); ++scale) {
    detail::check_target_values(targets[scale], get_vq(scale).options.codebook_size(),
                                kHierarchicalVQ);
  }
  return targets;
}

HierarchicalVQOutput HierarchicalVQImpl::forward(const torch::Tensor& x,
                                                 const HierarchicalVQForwardOptions& call) {
  check_input(x);
  const auto mask = scale_layout(options).token_mask(x, call.mask(), call.lens());
  for (const auto& vq : vqs) {
    detail::check_affine_param(*vq);
    detail::check_temperature(vq->options, call.sample_codebook_temp(), kHierarchicalVQ);
  }
  const auto targets = checked_targets(x, call);
  // Decoding may run outside autocast, so forward disables it for equal results.
  const detail::WithoutAutocast without_autocast;
  std::vector<Codebook> codebooks;
  std::vector<VectorQuantizeImpl*> levels;
  for (const auto& vq : vqs) {
    codebooks.push_back(vq->codebook_state);
    levels.push_back(vq.ptr().get());
  }
  const auto ranks = detail::ranks_of(detail::synced_level(vqs), kHierarchicalVQ, options.dim());
  // Before the depth is drawn, so that ranks draw the same depth.
  const auto rows = detail::widened(scale_layout(options).pack(x, mask));  // zeros for padding
  if (!ranks.alone()) {
    agree_on_scales(*this, levels, codebooks, call.freeze_codebook(), rows.scalar_type(), ranks);
  }
  if (is_training()) {
    for (const auto* vq : levels) detail::check_options_set_later(*vq);
  }
  const auto depth = scales_in_use(*this);
  const auto run = [&] {
    if (is_training()) detail::reset_replaced(codebooks);
    return detail::walk_scales(*this, rows, positions_of(options, x),
                               {.mask = map_mask(options, x, mask),
                                .targets = targets,
                                .temperature = call.sample_codebook_temp(),
                                .frozen = call.freeze_codebook(),
                                .depth = depth,
                                .ranks = ranks});
  };
  // Under vqp_compat a scale learns before the next one is searched, through modules of the caller.
  // If one of them fails, the scales before have learnt, which is undone.
  const auto runs =
      options.vqp_compat() ? detail::CallerCode::kBetweenUpdates : detail::CallerCode::kNone;
  const auto done =
      is_training() ? detail::undone_if_it_fails(std::move(levels), run, runs) : run();
  HierarchicalVQOutput output{restore_rows(options, done.output, x, mask),
                              indices_of_scales(*this, done.tokens, x.size(0)), done.loss,
                              std::nullopt};
  if (depth < num_levels()) output.cutoff = depth - 1;
  return output;
}

// Codes -------------------------------------------------------------------------------------------

torch::Tensor HierarchicalVQImpl::decode_scale(int64_t scale, const torch::Tensor& indices,
                                               at::IntArrayRef full) {
  const auto codes = detail::widened(
      ops::lookup_codes(get_vq(scale).codebook_state->codes(), indices.reshape({1, -1})));
  const auto& shape = resolved_.shapes[scale];
  int64_t cells = 1;
  for (const auto size : shape) cells *= size;
  const auto tokens = codes.view({indices.size(0), cells, options.dim()});
  const auto decoded = choose_phi(scale)(tokens, shape, full);
  auto absent = indices.lt(0).flatten(1).all(1);
  std::vector<int64_t> lone(full.size() + 2, 1);
  lone[0] = -1;
  return decoded.masked_fill(absent.view(lone), 0);
}

torch::Tensor HierarchicalVQImpl::get_output_from_indices(
    const std::vector<torch::Tensor>& indices,
    const std::optional<std::vector<int64_t>>& full_shape, const OptionalTensor& mask) {
  const bool any = !indices.empty() && indices[0].defined() && indices[0].dim() > 0;
  const auto batch = any ? indices[0].size(0) : 0;
  const auto whole = checked_indices(indices, batch);
  const auto full = full_shape.value_or(resolved_.shapes.back());
  TORCH_CHECK_VALUE(static_cast<int64_t>(full.size()) == options.spatial_dims(),
                    "HierarchicalVQ: expected full_shape to be ", options.spatial_dims(),
                    " numbers, but got ", full);
  const detail::WithoutAutocast without_autocast;
  torch::Tensor total;
  for (int64_t scale = 0; scale < num_levels(); ++scale) {
    const auto decoded = decode_scale(scale, whole[scale], full);
    total = (total.defined() ? total : at::zeros_like(decoded)).add(decoded);
  }
  if (mask) {
    detail::check_dtype(kHierarchicalVQ, "mask", *mask, at::kBool);
    const auto shape = with_batch(batch, full);
    const at::IntArrayRef expected(shape);
    TORCH_CHECK_VALUE(mask->sizes() == expected, "HierarchicalVQ: expected mask to have shape ",
                      expected, ", but got ", mask->sizes());
    total = total.masked_fill(mask->logical_not().unsqueeze(1), 0);
  }
  total = get_vq(0).codebook_state->in_half_dtype(total);
  return options.channel_first() ? total : total.movedim(1, -1);
}

std::vector<CodebookStats> HierarchicalVQImpl::stats(bool synced) const {
  std::vector<const CodebookImpl*> codebooks;
  for (int64_t scale = 0; scale < num_levels(); ++scale) {
    codebooks.push_back(get_vq(scale).codebook_state.get());
  }
  const auto counts = step_counts.empty() ? std::vector<torch::Tensor>(num_levels()) : step_counts;
  return detail::stats_of(counts, codebooks, synced ? detail::group_of(get_vq(0)) : "");
}

}  // namespace torchvq
