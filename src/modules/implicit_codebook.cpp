#include <torchvq/modules/implicit_codebook.h>

#include <ostream>

#include <ATen/ops/broadcast_tensors.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include "detail/joined.h"
#include "modules/copy_tensors.h"
#include "modules/projection.h"

namespace torchvq {

ImplicitCodebookImpl::ImplicitCodebookImpl(int64_t dim_, ImplicitCodebookOptions options_)
    : dim(dim_), options(options_) {
  reset();
}

void ImplicitCodebookImpl::reset() {
  proj_in = register_module("proj_in", torch::nn::Linear(2 * dim, dim));
  auto layers = register_module("layers", torch::nn::ModuleList());
  const int64_t hidden = options.dim_hidden().value_or(dim);
  layers_.clear();
  for (int64_t i = 0; i < options.depth(); ++i) {
    const Layer layer{torch::nn::Linear(dim, hidden), torch::nn::Linear(hidden, dim)};
    layers->push_back(torch::nn::Sequential(layer.up, torch::nn::SiLU(), layer.down));
    layers_.push_back(layer);
  }
}

void ImplicitCodebookImpl::pretty_print(std::ostream& stream) const {
  stream << "torchvq::ImplicitCodebook(dim=" << dim << ", depth=" << options.depth() << ")";
}

std::shared_ptr<torch::nn::Module> ImplicitCodebookImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<ImplicitCodebookImpl>(dim, options);
  detail::copy_tensors(*this, *copy, device);
  return copy;
}

torch::Tensor ImplicitCodebookImpl::forward(const torch::Tensor& codes,
                                            const torch::Tensor& condition) {
  return rows(codes.unsqueeze(1).unsqueeze(1), condition.unsqueeze(2).unsqueeze(0));
}

torch::Tensor ImplicitCodebookImpl::rows(const torch::Tensor& codes,
                                         const torch::Tensor& condition) {
  const auto both = at::broadcast_tensors({condition, codes});
  auto h = detail::apply_linear(proj_in, detail::joined(both, -1));
  for (const auto& [up, down] : layers_) {
    const auto hidden = at::silu(at::linear(h, up->weight, up->bias));
    h = h.add(at::linear(hidden, down->weight, down->bias));
  }
  return h.to(codes.scalar_type());
}

}  // namespace torchvq
