#include <ostream>

#include <ATen/ops/stack.h>

#include <torchvq/modules/residual_fsq.h>

#include "detail/joined.h"
#include "modules/copy_tensors.h"
#include "modules/groups.h"

namespace torchvq {

GroupedResidualFSQImpl::GroupedResidualFSQImpl(GroupedResidualFSQOptions options_)
    : options(std::move(options_)), built_from_(options) {
  reset();
}

void GroupedResidualFSQImpl::reset() {
  options.validate();
  auto own = options.rfsq();
  own.dim(options.dim() / options.groups());
  if (options.accept_image_fmap()) own.is_channel_first(true);
  detail::fill_groups(*this, [&](int64_t /*group*/) { return ResidualFSQ(own); });
}

void GroupedResidualFSQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::GroupedResidualFSQ(dim=" << options.dim() << ", groups=" << options.groups()
         << ", num_quantizers=" << options.rfsq().num_quantizers() << ")";
}

std::shared_ptr<torch::nn::Module> GroupedResidualFSQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<GroupedResidualFSQImpl>(built_from_);
  detail::check_number_of("rvqs", rvqs.size(), copy->rvqs.size());
  detail::copy_tensors(*this, *copy, device);
  for (size_t group = 0; group < rvqs.size(); ++group) {
    copy->rvqs[group]->copy_options(*rvqs[group]);
  }
  copy->options = options;
  return copy;
}

ResidualFSQOutput GroupedResidualFSQImpl::forward(const torch::Tensor& x,
                                                  const ResidualFSQForwardOptions& call) {
  const auto layout = detail::layout_of_groups(*this, "GroupedResidualFSQ");
  layout.check_input(x);
  const auto parts = x.chunk(options.groups(), detail::feature_axis(layout));
  std::vector<torch::Tensor> quantized, indices, codes;
  std::optional<int64_t> depth;
  for (size_t group = 0; group < rvqs.size(); ++group) {
    auto result = rvqs[group]->forward_to_depth(parts[group], call, depth);
    quantized.push_back(std::move(result.quantized));
    indices.push_back(std::move(result.indices));
    codes.push_back(std::move(result.all_codes));
  }
  return {detail::joined(quantized, detail::feature_axis(layout)), at::stack(indices),
          call.return_all_codes() ? detail::stacked(codes) : torch::Tensor()};
}

torch::Tensor GroupedResidualFSQImpl::get_codes_from_indices(const torch::Tensor& indices) {
  return detail::codes_of_groups(rvqs, indices,
                                 detail::layout_of_groups(*this, "GroupedResidualFSQ"));
}

torch::Tensor GroupedResidualFSQImpl::get_output_from_indices(const torch::Tensor& indices) {
  return detail::output_of_groups(rvqs, indices,
                                  detail::layout_of_groups(*this, "GroupedResidualFSQ"));
}

torch::Tensor GroupedResidualFSQImpl::codebooks() const {
  return detail::codebooks_of_groups(rvqs);
}

}  // namespace torchvq
