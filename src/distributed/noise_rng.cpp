#include <torchvq/distributed/noise_rng.h>

#include <string>
#include <string_view>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <torch/library.h>

#include "detail/op_handle.h"
#include "detail/random_tensor.h"
#include "distributed/group.h"

namespace torchvq::distributed {
namespace {

using NoiseRngSignature = at::Tensor(const at::Tensor&, std::string_view, std::string_view);

// A prime below 2^40, which keeps the consecutive seeds of levels apart.
constexpr int64_t kSeedsApart = 1099511627689;

at::Tensor noise_rng_any(const at::Tensor& rng, std::string_view group_name,
                         std::string_view label) {
  detail::check_rng("noise_rng", rng);
  const auto rank = Group(group_name, {std::string(label), {}}).rank();
  return at::stack({rng[0].add(rank * kSeedsApart), rng[1]});
}

at::Tensor noise_rng_meta(const at::Tensor& rng, std::string_view /*group_name*/,
                          std::string_view /*label*/) {
  detail::check_rng("noise_rng", rng);
  return at::empty_like(rng, at::MemoryFormat::Contiguous);
}

}  // namespace

at::Tensor noise_rng(const at::Tensor& rng, const SyncOptions& options) {
  if (options.group_name.empty()) return rng;
  // An operator of its own, which asks for the rank where it runs: ranks load each other's graphs
  // from a compiler's cache.
  static auto op = detail::op_handle<NoiseRngSignature>("torchvq::noise_rng");
  return op.call(rng, options.group_name, options.label);
}

}  // namespace torchvq::distributed

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("noise_rng(Tensor rng, *, str group_name, str label) -> Tensor");
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("noise_rng", torchvq::distributed::noise_rng_any);
}

TORCH_LIBRARY_IMPL(torchvq, Meta, m) { m.impl("noise_rng", torchvq::distributed::noise_rng_meta); }
