#include <torchvq/functional/shared_moments.h>

#include <string>
#include <string_view>

#include <ATen/TensorOperators.h>
#include <torch/library.h>

#include <torchvq/distributed/all_reduce.h>

#include "distributed/group.h"

namespace torchvq::functional {

at::Tensor gather_moments(const at::Tensor& moments, const distributed::SyncOptions& options) {
  const distributed::Group group(options.group_name, {options.label, {}});
  return distributed::all_reduce_statistics(own_row(group, moments.detach()), options);
}

at::Tensor attach_moments(const at::Tensor& gathered, const at::Tensor& moments,
                          const distributed::SyncOptions& options) {
  const distributed::Group group(options.group_name, {options.label, {}});
  const auto nothing = (moments - moments.detach()) * static_cast<double>(group.size());
  return gathered + own_row(group, nothing);
}

}  // namespace torchvq::functional

namespace {

at::Tensor gather_moments(const at::Tensor& moments, std::string_view group_name,
                          std::string_view label) {
  return torchvq::functional::gather_moments(moments,
                                             {std::string(group_name), std::string(label)});
}

at::Tensor attach_moments(const at::Tensor& gathered, const at::Tensor& moments,
                          std::string_view group_name, std::string_view label) {
  return torchvq::functional::attach_moments(gathered, moments,
                                             {std::string(group_name), std::string(label)});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("gather_moments(Tensor moments, *, str group_name, str label) -> Tensor",
        TORCH_FN(gather_moments));
  m.def("attach_moments(Tensor gathered, Tensor moments, *, str group_name, str label) -> Tensor",
        TORCH_FN(attach_moments));
}
