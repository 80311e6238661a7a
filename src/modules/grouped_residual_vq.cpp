#include <torchvq/modules/grouped_residual_vq.h>

#include <ostream>
#include <string>

#include <ATen/ops/stack.h>

#include "detail/joined.h"
#include "modules/copy_tensors.h"
#include "modules/groups.h"
#include "modules/residual_levels.h"
#include "modules/stats.h"

namespace torchvq {
namespace {

/// Groups that train share a message, whose size all ranks must agree in.
void name_training_groups(std::vector<detail::StackRequest>& requests) {
  detail::StackRequest* first = nullptr;
  std::string training;
  bool all = true;
  for (size_t group = 0; group < requests.size(); ++group) {
    const bool trains = !requests[group].ranks.alone();
    if (trains && first == nullptr) first = &requests[group];
    if (trains) training += " " + std::to_string(group);
    all = all && trains;
  }
  if (first != nullptr && !all) first->groups = ", training groups" + training;
}

}  // namespace

detail::Layout detail::layout_of(const GroupedResidualVQImpl& grouped) {
  auto layout = layout_of(*grouped.rvqs[0]);
  layout.dim = grouped.options.dim();
  layout.owner = "GroupedResidualVQ";
  return layout;
}

GroupedResidualVQImpl::GroupedResidualVQImpl(GroupedResidualVQOptions options_)
    : options(std::move(options_)), built_from_(options) {
  reset();
}

void GroupedResidualVQImpl::reset() {
  options.validate();
  auto own = options.rvq();
  own.dim(options.dim() / options.groups()).accept_image_fmap(options.accept_image_fmap());
  detail::fill_groups(*this,
                      [&](int64_t group) { return ResidualVQ(own, /*owns_bridge=*/group == 0); });
}

void GroupedResidualVQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::GroupedResidualVQ(dim=" << options.dim() << ", groups=" << options.groups()
         << ", num_quantizers=" << rvqs[0]->num_quantizers() << ")";
}

std::shared_ptr<torch::nn::Module> GroupedResidualVQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = built_from_;
  auto& bridge = own.rvq().vq().vq_bridge();
  bridge = bridge.clone(device);
  auto copy = std::make_shared<GroupedResidualVQImpl>(std::move(own));
  detail::check_number_of("rvqs", rvqs.size(), copy->rvqs.size());
  detail::copy_tensors(*this, *copy, device);
  for (size_t group = 0; group < rvqs.size(); ++group) {
    copy->rvqs[group]->copy_state(*rvqs[group], device);
  }
  detail::copy_options(options, built_from_, copy->options, device,
                       [](auto& all) -> auto& { return all.rvq().vq().vq_bridge(); });
  return copy;
}

ResidualVQOutput GroupedResidualVQImpl::forward(const torch::Tensor& x,
                                                const ResidualVQForwardOptions& call) {
  const auto layout = detail::layout_of(*this);
  layout.check_input(x);
  const auto targets = call.indices() ? detail::split_groups(*call.indices(), rvqs.size(), layout)
                                      : std::vector<torch::Tensor>();
  const auto parts = x.chunk(options.groups(), detail::feature_axis(layout));
  // All groups are checked before the first one writes anything.
  std::vector<detail::StackRequest> requests;
  for (size_t group = 0; group < rvqs.size(); ++group) {
    auto own = call;
    if (!targets.empty()) own.indices(targets[group]);
    requests.push_back(detail::checked_request(*rvqs[group], parts[group], own));
  }
  name_training_groups(requests);
  std::vector<detail::Pending> stacks;
  std::optional<int64_t> depth;
  for (size_t group = 0; group < rvqs.size(); ++group) {
    stacks.push_back(
        detail::start(*rvqs[group], parts[group], call, std::move(requests[group]), depth));
  }
  auto results = detail::finish(std::move(stacks));
  std::vector<torch::Tensor> quantized, indices, loss, codes;
  for (auto& result : results) {
    quantized.push_back(std::move(result.quantized));
    indices.push_back(std::move(result.indices));
    loss.push_back(std::move(result.loss));
    codes.push_back(std::move(result.all_codes));
  }
  return {detail::joined(quantized, detail::feature_axis(layout)), at::stack(indices),
          at::stack(loss), call.return_all_codes() ? detail::stacked(codes) : torch::Tensor()};
}

std::vector<std::vector<CodebookStats>> GroupedResidualVQImpl::stats(bool synced) const {
  std::vector<const VectorQuantizeImpl*> all;
  for (const auto& rvq : rvqs) {
    for (const auto& level : rvq->levels) {
      all.push_back(level.get());
    }
  }
  const auto found = detail::read_stats(all, synced);
  const auto levels = rvqs[0]->num_quantizers();
  std::vector<std::vector<CodebookStats>> groups;
  for (auto from = found.begin(); from != found.end(); from += levels) {
    groups.emplace_back(from, from + levels);
  }
  return groups;
}

torch::Tensor GroupedResidualVQImpl::get_codes_from_indices(const torch::Tensor& indices) {
  return detail::codes_of_groups(rvqs, indices, detail::layout_of(*this));
}

torch::Tensor GroupedResidualVQImpl::get_output_from_indices(const torch::Tensor& indices) {
  return detail::output_of_groups(rvqs, indices, detail::layout_of(*this));
}

}  // namespace torchvq
