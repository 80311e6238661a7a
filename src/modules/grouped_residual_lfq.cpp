#include <ostream>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <torch/nn/modules/container/modulelist.h>

#include <torchvq/modules/residual_lfq.h>

#include "modules/copy_tensors.h"
#include "modules/layout.h"

namespace torchvq {
namespace {

constexpr auto kOwner = "GroupedResidualLFQ";

}  // namespace

GroupedResidualLFQImpl::GroupedResidualLFQImpl(GroupedResidualLFQOptions options_)
    : options(std::move(options_)) {
  reset();
}

void GroupedResidualLFQImpl::reset() {
  options.validate();
  auto own = options.rlfq();
  own.dim(options.dim() / options.groups());
  if (options.accept_image_fmap()) own.is_channel_first(true);
  auto list = register_module("rvqs", torch::nn::ModuleList());
  rvqs.clear();
  for (int64_t group = 0; group < options.groups(); ++group) {
    rvqs.emplace_back(own);
    list->push_back(rvqs.back());
  }
}

void GroupedResidualLFQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::GroupedResidualLFQ(dim=" << options.dim() << ", groups=" << options.groups()
         << ", num_quantizers=" << options.rlfq().num_quantizers() << ")";
}

std::shared_ptr<torch::nn::Module> GroupedResidualLFQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<GroupedResidualLFQImpl>(options);
  detail::copy_tensors(*this, *copy, device);
  return copy;
}

int64_t GroupedResidualLFQImpl::split_dim() const {
  return rvqs[0]->options.is_channel_first() ? 1 : -1;
}

std::vector<torch::Tensor> GroupedResidualLFQImpl::split_indices(
    const torch::Tensor& indices) const {
  TORCH_CHECK_VALUE(indices.dim() > 0 && indices.size(0) == options.groups(), kOwner,
                    ": expected indices to have ", options.groups(),
                    " groups on the first axis, but got shape ", indices.sizes());
  return indices.unbind(0);
}

ResidualLFQOutput GroupedResidualLFQImpl::forward(const torch::Tensor& x,
                                                  const ResidualLFQForwardOptions& call) {
  const detail::Layout layout{.dim = options.dim(),
                              .heads = 1,
                              .separate = false,
                              .channel_first = split_dim() == 1,
                              .map_rank = options.accept_image_fmap() ? 4 : 0,
                              .owner = kOwner};
  layout.check(x);
  const auto parts = x.chunk(options.groups(), split_dim());
  std::vector<ResidualLFQImpl::Pending> stacks;
  std::optional<int64_t> depth;
  for (size_t group = 0; group < rvqs.size(); ++group) {
    stacks.push_back(rvqs[group]->start(parts[group], call, depth));
  }
  ResidualLFQImpl::finish(stacks);
  std::vector<torch::Tensor> quantized, indices, losses, codes;
  for (auto& [stack, result, signs] : stacks) {
    quantized.push_back(std::move(result.quantized));
    indices.push_back(std::move(result.indices));
    losses.push_back(std::move(result.loss));
    codes.push_back(std::move(result.all_codes));
  }
  return {at::cat(quantized, split_dim()), at::stack(indices), at::stack(losses),
          call.return_all_codes() ? at::stack(codes) : torch::Tensor()};
}

torch::Tensor GroupedResidualLFQImpl::get_codes_from_indices(const torch::Tensor& indices) {
  const auto parts = split_indices(indices);
  std::vector<torch::Tensor> codes;
  for (size_t group = 0; group < rvqs.size(); ++group) {
    codes.push_back(rvqs[group]->get_codes_from_indices(parts[group]));
  }
  return at::stack(codes);
}

torch::Tensor GroupedResidualLFQImpl::get_output_from_indices(const torch::Tensor& indices) {
  const auto parts = split_indices(indices);
  std::vector<torch::Tensor> outputs;
  for (size_t group = 0; group < rvqs.size(); ++group) {
    outputs.push_back(rvqs[group]->get_output_from_indices(parts[group]));
  }
  return at::cat(outputs, outputs[0].dim() > 2 ? split_dim() : -1);
}

torch::Tensor GroupedResidualLFQImpl::codebooks() const {
  std::vector<torch::Tensor> codes;
  for (const auto& rvq : rvqs) codes.push_back(rvq->codebooks());
  return at::stack(codes);
}

}  // namespace torchvq
