#include <torchvq/modules/residual_fsq.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <torch/nn/modules/container/modulelist.h>

#include <torchvq/functional/quantize_scalars.h>
#include <torchvq/functional/vqp_compat.h>
#include <torchvq/ops/advance_rng_.h>
#include <torchvq/ops/residual_scalar_quantize.h>

#include "modules/copy_tensors.h"
#include "modules/indices.h"
#include "modules/random_state.h"
#include "modules/residual_stack.h"

namespace torchvq {

namespace F = functional;
using OptionalTensor = std::optional<torch::Tensor>;

namespace {

/// The options of a level: those given for all levels, with those that the stack sets.
FSQOptions level_options(const ResidualFSQOptions& options) {
  auto own = options.fsq();
  return own.levels(options.levels())
      .dim(std::nullopt)
      .preserve_symmetry(true)
      .bound_hard_clamp(options.bound_hard_clamp())
      .channel_first(false)
      .return_indices(true)
      .vqp_compat(options.vqp_compat());
}

/// (Q, D): after a level, the residual is at most 1/L of the residual before. Deep levels stay at the
/// smallest normal number: a scale of zero would make NaN of every token.
torch::Tensor scales_of(const ResidualFSQOptions& options) {
  constexpr double least = std::numeric_limits<float>::min();
  std::vector<float> scales;
  for (int64_t level = 0; level < options.num_quantizers(); ++level) {
    for (const auto count : options.levels()) {
      const double scale = std::pow(static_cast<double>(count), -static_cast<double>(level));
      scales.push_back(static_cast<float>(std::max(scale, least)));
    }
  }
  return at::tensor(scales).view({options.num_quantizers(), -1});
}

std::optional<torch::Tensor> soft_clamp_of(const ResidualFSQOptions& options) {
  std::vector<float> limit;
  if (options.bound_hard_clamp()) {
    for (const auto count : options.levels()) {
      limit.push_back(static_cast<float>(1 + 1 / static_cast<double>(count - 1)));
    }
  } else if (options.soft_clamp_input_value()) {
    for (const auto value : *options.soft_clamp_input_value()) {
      limit.push_back(static_cast<float>(value));
    }
  } else {
    return std::nullopt;
  }
  return at::tensor(limit);
}

/// The bound of the operator for all levels, if they agree on one that it has: the options of a
/// level may be set apart.
std::optional<std::string> bound_of_all(const std::vector<FSQ>& levels) {
  const auto first = levels[0]->bound_name();
  const bool has = first == "symmetric_tanh" || first == "symmetric_clamp";
  const bool agree = std::all_of(levels.begin(), levels.end(),
                                 [&](const FSQ& level) { return level->bound_name() == first; });
  return has && agree ? std::optional(first) : std::nullopt;
}

}  // namespace

ResidualFSQImpl::ResidualFSQImpl(ResidualFSQOptions options_)
    : options(std::move(options_)), built_from_(options) {
  reset();
}

void ResidualFSQImpl::reset() {
  options.validate();
  const auto inner = static_cast<int64_t>(options.levels().size());
  if (dim() != inner) {
    project_in = register_module("project_in", torch::nn::Linear(dim(), inner));
    project_out = register_module("project_out", torch::nn::Linear(inner, dim()));
  }
  levels.clear();
  auto list = register_module("layers", torch::nn::ModuleList());
  for (int64_t level = 0; level < options.num_quantizers(); ++level) {
    levels.emplace_back(level_options(options), /*owns_rng=*/false);
    list->push_back(levels.back());
  }
  if (drops() || options.fsq().noise_dropout() > 0) {
    rng = register_buffer("rng", detail::fresh_rng());
  }
  scales_ = scales_of(options);
  soft_clamp_ = soft_clamp_of(options);
}

void ResidualFSQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::ResidualFSQ(levels=" << at::IntArrayRef(options.levels())
         << ", num_quantizers=" << options.num_quantizers() << ", dim=" << dim() << ")";
}

std::shared_ptr<torch::nn::Module> ResidualFSQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<ResidualFSQImpl>(built_from_);
  detail::copy_tensors(*this, *copy, device);
  copy->copy_options(*this);
  return copy;
}

void ResidualFSQImpl::copy_options(const ResidualFSQImpl& other) {
  detail::check_number_of("levels", other.levels.size(), levels.size());
  for (size_t level = 0; level < levels.size(); ++level) {
    levels[level]->options = other.levels[level]->options;
  }
  options = other.options;
  scales_ = other.scales_;
}

void ResidualFSQImpl::to(torch::Device device, torch::Dtype dtype, bool non_blocking) {
  KeptBuffers<ResidualFSQImpl>::to(device, dtype, non_blocking);
  cast_scales(dtype);
}

void ResidualFSQImpl::to(torch::Dtype dtype, bool non_blocking) {
  KeptBuffers<ResidualFSQImpl>::to(dtype, non_blocking);
  cast_scales(dtype);
}

void ResidualFSQImpl::to(torch::Device device, bool non_blocking) {
  KeptBuffers<ResidualFSQImpl>::to(device, non_blocking);
}

/// Casts the scales with the module if its new dtype is float32 or float64: a module in float64
/// decodes in float64.
void ResidualFSQImpl::cast_scales(torch::Dtype dtype) {
  if (dtype == at::kFloat || dtype == at::kDouble) scales_ = scales_.to(dtype);
}

bool ResidualFSQImpl::keeps_codebook_axis() const { return levels[0]->keeps_codebook_axis(); }

detail::Layout ResidualFSQImpl::layout() const {
  return {.dim = dim(), .channel_first = options.is_channel_first(), .owner = "ResidualFSQ"};
}

/// Levels draw their noise from the generator of the stack, which is made for it at construction.
void ResidualFSQImpl::check_noise() const {
  if (!is_training() || built_from_.fsq().noise_dropout() > 0) return;
  const bool noisy = options.fsq().noise_dropout() > 0 ||
                     std::any_of(levels.begin(), levels.end(), [](const FSQ& level) {
                       return level->is_training() && level->options.noise_dropout() > 0;
                     });
  TORCH_CHECK_VALUE(!noisy,
                    "ResidualFSQ: expected noise_dropout to be given to the constructor, which "
                    "makes the generator of the noise, but got set on the module");
}

struct ResidualFSQImpl::Stack final : detail::ResidualStack {
  Stack(const ResidualFSQImpl& own, OptionalTensor noise_rng)
      : own_(own), noise_rng_(std::move(noise_rng)) {
    layout = own.layout();
    levels = own.options.num_quantizers();
    vqp_compat = own.options.vqp_compat();
    module = &own;
    gain = vqp_compat ? detail::StackGain::kSummed : detail::StackGain::kAttached;
    project_in = own.project_in;
    project_out = own.project_out;
  }

  at::Tensor prepare_inputs(const at::Tensor& inputs, const OptionalTensor& /*mask*/) override {
    return own_.soft_clamp_ ? F::soft_clamp(inputs, own_.soft_clamp_->to(inputs.device())) : inputs;
  }

  detail::LevelsResult process_levels(const at::Tensor& inputs, const OptionalTensor& /*mask*/,
                                      int64_t depth, bool all_codes) override {
    const bool rotates = own_.options.fsq().orthogonal_rotation();
    if (!all_codes && !vqp_compat && !noise_rng_ && !rotates) {
      if (const auto bound = bound_of_all(own_.levels)) {
        auto [total, indices] = ops::residual_scalar_quantize(
            inputs, own_.options.levels(), own_.scales_.narrow(0, 0, depth).to(inputs.device()),
            *bound);
        return {std::move(total), std::move(indices), {}};
      }
    }
    return process_in_turn(inputs, depth, [this](int64_t index, const at::Tensor& residual) {
      const auto& level = own_.levels[static_cast<size_t>(index)];
      const auto [codes, indices] =
          level->quantize_tokens(residual, own_.scales_[index].to(residual.device()), std::nullopt,
                                 level->is_training() ? noise_rng_ : std::nullopt, index);
      return detail::LevelResult{codes, indices.squeeze(-1)};
    });
  }

  at::Tensor decode_level(int64_t index, const at::Tensor& indices) override {
    const auto scale = own_.scales_[index].to(indices.device());
    return own_.levels[static_cast<size_t>(index)]->decode_tokens(indices.unsqueeze(-1), scale);
  }

 private:
  const ResidualFSQImpl& own_;
  OptionalTensor noise_rng_;
};

ResidualFSQOutput ResidualFSQImpl::forward(const torch::Tensor& x,
                                           const ResidualFSQForwardOptions& call) {
  std::optional<int64_t> depth;
  return forward_to_depth(x, call, depth);
}

ResidualFSQOutput ResidualFSQImpl::forward_to_depth(const torch::Tensor& x,
                                                    const ResidualFSQForwardOptions& call,
                                                    std::optional<int64_t>& depth) {
  const auto mask = detail::checked_mask(layout(), x, call.mask());
  const auto& seed = call.rand_quantize_dropout_fixed_seed();
  const bool dropping = is_training() && drops();
  const bool noisy = is_training() && options.fsq().noise_dropout() > 0;
  detail::check_depths("ResidualFSQ", dropping && !seed, rng);
  check_noise();
  const auto used = detail::depth_in_use(options, dropping, seed, rng, depth);
  Stack stack(*this, noisy ? std::optional(detail::rng_of_rank(rng)) : std::nullopt);
  const auto found = detail::run_stack(stack, x, mask, used, call.return_all_codes());
  if (noisy || (dropping && !seed)) {
    ops::advance_rng_(rng);
  }
  auto indices = keeps_codebook_axis() ? found.indices.unsqueeze(-2) : found.indices;
  if (options.vqp_compat()) indices = F::vqp_indices(indices, levels[0]->codebook_size());
  return {found.quantized, indices, found.all_codes};
}

// Codes -------------------------------------------------------------------------------------------

torch::Tensor ResidualFSQImpl::get_codes_from_indices(const torch::Tensor& indices) {
  const auto plain = detail::without_codebook_axis("ResidualFSQ", indices, keeps_codebook_axis());
  Stack stack(*this, std::nullopt);
  return detail::stack_codes(stack, plain, drops());
}

torch::Tensor ResidualFSQImpl::get_output_from_indices(const torch::Tensor& indices) {
  const auto plain = detail::without_codebook_axis("ResidualFSQ", indices, keeps_codebook_axis());
  Stack stack(*this, std::nullopt);
  return detail::stack_output(stack, plain, drops());
}

torch::Tensor ResidualFSQImpl::codebooks() const {
  std::vector<torch::Tensor> codes;
  for (const auto& level : levels) codes.push_back(level->implicit_codebook());
  return at::stack(codes);
}

}  // namespace torchvq
