#include <torchvq/ops/token_moments.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <torchvq/distributed/all_reduce.h>

#include "distributed/group.h"

namespace torchvq::functional {
namespace {

/// Keeps skewness, kurtosis and their gradient finite where a feature is constant.
constexpr double kLeastVariance = 1e-8;

/// The sums of all rows about their common mean (Pebay 2008, SAND2008-6212, equations 3.1).
struct Merged {
  at::Tensor count, mean, second, third, fourth;
};

Merged merge(const at::Tensor& moments) {
  const int64_t dim = (moments.size(1) - 1) / 4;
  const auto part = [&](int64_t k) { return moments.narrow(1, 1 + k * dim, dim); };
  const auto counts = moments.narrow(1, 0, 1);
  const auto count = counts.sum();
  const auto mean = (counts * part(0)).sum(0) / count.clamp_min(1);
  const auto shift = part(0) - mean, square = shift.square();
  const auto second = part(1) + counts * square;
  const auto third = part(2) + shift * 3 * part(1) + counts * square * shift;
  const auto fourth =
      part(3) + shift * 4 * part(2) + square * 6 * part(1) + counts * square.square();
  return {count, mean, second.sum(0), third.sum(0), fourth.sum(0)};
}

/// A row among zeros, in the place of this rank.
at::Tensor own_row(const at::Tensor& moments, const distributed::Group& group) {
  return at::constant_pad_nd(moments.unsqueeze(0),
                             {0, 0, group.rank(), group.size() - 1 - group.rank()});
}

}  // namespace

MomentLoss moment_loss(const at::Tensor& moments, const MomentTargets& wanted) {
  TORCH_CHECK_VALUE(moments.dim() == 2 && moments.size(1) % 4 == 1,
                    "moment_loss: expected moments to have shape (W, 1 + 4 D), but got ",
                    moments.sym_sizes());
  const auto all = merge(moments);
  const auto number = all.count.clamp_min(1);
  const auto variance = all.second / (all.count - 1).clamp_min(1);
  const auto spread = variance + kLeastVariance;
  const auto skewness = all.third / number / spread.pow(1.5);
  const auto kurtosis = all.fourth / number / spread.square() - 3;
  const std::vector<at::Tensor> statistics{all.mean, variance, skewness, kurtosis};
  auto loss = at::zeros({}, moments.options());
  for (size_t k = 0; k < statistics.size(); ++k) {
    if (wanted.weights[k] == 0) continue;
    const auto term = (statistics[k] - wanted.targets[k]).square().mean() * wanted.weights[k];
    loss = loss + at::where(all.count.ge(k == 0 ? 1 : 2), term, 0);
  }
  return {loss, all.mean, variance, skewness, kurtosis};
}

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

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> moment_loss(
    const at::Tensor& moments, at::ArrayRef<double> targets, at::ArrayRef<double> weights) {
  TORCH_CHECK_VALUE(targets.size() == 4 && weights.size() == 4,
                    "moment_loss: expected 4 targets and weights, but got ", targets.size(),
                    " and ", weights.size());
  torchvq::functional::MomentTargets wanted{};
  std::copy(targets.begin(), targets.end(), wanted.targets.begin());
  std::copy(weights.begin(), weights.end(), wanted.weights.begin());
  const auto found = torchvq::functional::moment_loss(moments, wanted);
  return {found.loss, found.mean, found.variance, found.skewness, found.kurtosis};
}

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
  m.def(
      "moment_loss(Tensor moments, float[] targets, float[] weights) -> (Tensor loss, Tensor mean, "
      "Tensor variance, Tensor skewness, Tensor kurtosis)",
      TORCH_FN(moment_loss));
  m.def("gather_moments(Tensor moments, *, str group_name, str label) -> Tensor",
        TORCH_FN(gather_moments));
  m.def("attach_moments(Tensor gathered, Tensor moments, *, str group_name, str label) -> Tensor",
        TORCH_FN(attach_moments));
}
