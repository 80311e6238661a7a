#include <torchvq/modules/grouped_residual_vq.h>

#include <ostream>

#include <ATen/ops/stack.h>
#include <torch/nn/modules/container/modulelist.h>

#include "detail/joined.h"
#include "modules/groups.h"
#include "modules/residual_levels.h"
#include "modules/stats.h"
#include "modules/undo.h"

namespace torchvq {
namespace {

/// The layout of the common input of all groups.
detail::Layout layout_of(const GroupedResidualVQImpl& grouped) {
  auto layout = detail::layout_of(*grouped.rvqs[0]);
  layout.dim = grouped.options.dim();
  layout.owner = "GroupedResidualVQ";
  return layout;
}

}  // namespace

GroupedResidualVQImpl::GroupedResidualVQImpl(GroupedResidualVQOptions options_)
    : options(std::move(options_)) {
  reset();
}

void GroupedResidualVQImpl::reset() {
  options.validate();
  auto own = options.rvq();
  own.dim(options.dim() / options.groups()).accept_image_fmap(options.accept_image_fmap());
  auto list = register_module("rvqs", torch::nn::ModuleList());
  rvqs.clear();
  for (int64_t group = 0; group < options.groups(); ++group) {
    rvqs.emplace_back(own, /*owns_bridge=*/group == 0);
    list->push_back(rvqs.back());
  }
}

void GroupedResidualVQImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::GroupedResidualVQ(dim=" << options.dim() << ", groups=" << options.groups()
         << ", num_quantizers=" << rvqs[0]->num_quantizers() << ")";
}

std::shared_ptr<torch::nn::Module> GroupedResidualVQImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto own = options;
  auto& bridge = own.rvq().vq().vq_bridge();
  bridge = bridge.clone(device);
  auto copy = std::make_shared<GroupedResidualVQImpl>(std::move(own));
  // First, so that groups and levels in another mode keep it.
  copy->train(is_training());
  for (size_t group = 0; group < rvqs.size(); ++group) {
    copy->rvqs[group]->copy_state(*rvqs[group], device);
  }
  return copy;
}

ResidualVQOutput GroupedResidualVQImpl::forward(const torch::Tensor& x,
                                                const ResidualVQForwardOptions& call) {
  const auto layout = layout_of(*this);
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
  const auto run = [&] {
    std::vector<detail::Pending> stacks;
    std::optional<int64_t> depth;
    for (size_t group = 0; group < rvqs.size(); ++group) {
      stacks.push_back(detail::start(*rvqs[group], parts[group], call, std::move(requests[group]),
                                     depth, /*together=*/true));
    }
    return detail::finish(stacks);
  };
  std::vector<ResidualVQImpl*> groups;
  for (const auto& rvq : rvqs) groups.push_back(rvq.ptr().get());
  auto results =
      is_training() ? detail::counted_unless_it_fails(detail::levels_of(groups), run) : run();
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
  return detail::codes_of_groups(rvqs, indices, layout_of(*this));
}

torch::Tensor GroupedResidualVQImpl::get_output_from_indices(const torch::Tensor& indices) {
  return detail::output_of_groups(rvqs, indices, layout_of(*this));
}

}  // namespace torchvq
