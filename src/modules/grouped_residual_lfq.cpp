#include <ostream>

#include <ATen/ops/stack.h>

#include <torchvq/modules/residual_lfq.h>

#include "detail/joined.h"
#include "modules/copy_tensors.h"
#include "modules/groups.h"

namespace torchvq {

GroupedResidualLFQImpl::GroupedResidualLFQImpl(GroupedResidualLFQOptions options_)
    : options(std::move(options_)), built_from_(options) {
  reset();
}

void GroupedResidualLFQImpl::reset() {
  options.validate();
  auto own = options.rlfq();
  own.dim(options.dim() / options.groups());
  if (options.accept_image_fmap()) own.is_channel_first(true);
  detail::fill_groups(
      *this, [&](int64_t group) { return ResidualLFQ(own, /*owns_activation=*/group == 0); });
}

void GroupedResidualLFQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::GroupedResidualLFQ(dim=" << options.dim() << ", groups=" << options.groups()
         << ", num_quantizers=" << options.rlfq().num_quantizers() << ")";
}

std::shared_ptr<torch::nn::Module> GroupedResidualLFQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = built_from_;
  auto& activation = own.rlfq().lfq().straight_through_activation();
  activation = activation.clone(device);
  auto copy = std::make_shared<GroupedResidualLFQImpl>(std::move(own));
  detail::check_number_of("rvqs", rvqs.size(), copy->rvqs.size());
  detail::copy_tensors(*this, *copy, device);
  for (size_t group = 0; group < rvqs.size(); ++group) {
    copy->rvqs[group]->copy_options(*rvqs[group], device);
  }
  detail::copy_options(options, built_from_, copy->options, device, [](auto& all) -> auto& {
    return all.rlfq().lfq().straight_through_activation();
  });
  return copy;
}

ResidualLFQOutput GroupedResidualLFQImpl::forward(const torch::Tensor& x,
                                                  const ResidualLFQForwardOptions& call) {
  const auto layout = detail::layout_of_groups(*this, "GroupedResidualLFQ");
  layout.check_input(x);
  const auto parts = x.chunk(options.groups(), detail::feature_axis(layout));
  std::vector<ResidualLFQImpl::Pending> stacks;
  std::optional<int64_t> depth;
  for (size_t group = 0; group < rvqs.size(); ++group) {
    stacks.push_back(rvqs[group]->start(parts[group], call, depth, layout.channel_first));
  }
  ResidualLFQImpl::finish(stacks);
  std::vector<torch::Tensor> quantized, indices, losses, codes;
  for (auto& pending : stacks) {
    auto& result = pending.output;
    quantized.push_back(std::move(result.quantized));
    indices.push_back(std::move(result.indices));
    losses.push_back(std::move(result.loss));
    codes.push_back(std::move(result.all_codes));
  }
  return {detail::joined(quantized, detail::feature_axis(layout)), at::stack(indices),
          at::stack(losses), call.return_all_codes() ? detail::stacked(codes) : torch::Tensor()};
}

torch::Tensor GroupedResidualLFQImpl::get_codes_from_indices(const torch::Tensor& indices) {
  return detail::codes_of_groups(rvqs, indices,
                                 detail::layout_of_groups(*this, "GroupedResidualLFQ"));
}

torch::Tensor GroupedResidualLFQImpl::get_output_from_indices(const torch::Tensor& indices) {
  return detail::output_of_groups(rvqs, indices,
                                  detail::layout_of_groups(*this, "GroupedResidualLFQ"));
}

torch::Tensor GroupedResidualLFQImpl::codebooks() const {
  return detail::codebooks_of_groups(rvqs);
}

}  // namespace torchvq
