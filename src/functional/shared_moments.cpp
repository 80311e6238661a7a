#include <torchvq/functional/shared_moments.h>

#include <string>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <torch/library.h>

#include <torchvq/distributed/all_reduce.h>

#include "distributed/group.h"

namespace torchvq::functional {
namespace {

/// A tensor with a row per rank: this rank's row, zeros elsewhere.
at::Tensor own_row(const at::Tensor& moments, const distributed::Group& group) {
  return at::constant_pad_nd(moments.unsqueeze(0),
                             {0, 0, group.rank(), group.size() - 1 - group.rank()});
}

}  // namespace

at::Tensor gather_moments(const at::Tensor& moments, const distributed::SyncOptions& options) {
  const distributed::Group group(options.group_name, {options.label, {}});
  return distributed::all_reduce_statistics(own_row(moments.detach(), group), options);
}

at::Tensor attach_moments(const at::Tensor& gathered, const at::Tensor& moments,
                          const distributed::SyncOptions& options) {
  const distributed::Group group(options.group_name, {options.label, {}});
  const auto nothing = (moments - moments.detach()) * static_cast<double>(group.size());
  return gathered + own_row(nothing, group);
}

}  // namespace torchvq::functional

namespace {

using torchvq::distributed::SyncOptions;

SyncOptions options_of(std::string_view group_name, std::string_view label) {
  SyncOptions options;
  options.group_name = std::string(group_name);
  options.label = std::string(label);
  return options;
}

at::Tensor gather_moments(const at::Tensor& moments, std::string_view group_name,
                          std::string_view label) {
  return torchvq::functional::gather_moments(moments, options_of(group_name, label));
}

at::Tensor attach_moments(const at::Tensor& gathered, const at::Tensor& moments,
                          std::string_view group_name, std::string_view label) {
  return torchvq::functional::attach_moments(gathered, moments, options_of(group_name, label));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("gather_moments(Tensor moments, *, str group_name, str label) -> Tensor",
        TORCH_FN(gather_moments));
  m.def("attach_moments(Tensor gathered, Tensor moments, *, str group_name, str label) -> Tensor",
        TORCH_FN(attach_moments));
}
