#include "ops/gumbel_straight_through.h"

#include <array>

#include <torch/library.h>

namespace torchvq {
namespace {

at::Tensor gumbel_straight_through(const at::Tensor& x, const at::Tensor& codebook,
                                   const at::Tensor& indices, double temperature,
                                   c10::string_view metric) {
  detail::check_gumbel_straight_through(x, codebook, indices, temperature, metric);
  return codebook.new_empty_symint(x.sym_sizes());
}

std::tuple<at::Tensor, at::Tensor> gumbel_straight_through_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& codebook,
    const at::Tensor& indices, double temperature, c10::string_view metric,
    std::array<bool, 2> wanted) {
  detail::check_gumbel_straight_through_backward(grad, x, codebook, indices, temperature, metric);
  const auto room = [](const at::Tensor& like, bool want) {
    return want ? like.new_empty_symint(like.sym_sizes()) : like.new_empty({0});
  };
  return {room(x, wanted[0]), room(codebook, wanted[1])};
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("gumbel_straight_through", gumbel_straight_through);
  m.impl("gumbel_straight_through_backward", gumbel_straight_through_backward);
}

}  // namespace torchvq
