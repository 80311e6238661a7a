#include <torchvq/ops/scalar_noise.h>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "detail/differentiable.h"

namespace torchvq {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct ScalarNoise : torch::autograd::Function<ScalarNoise> {
  static at::Tensor forward(AutogradContext* /*ctx*/, const at::Tensor& codes,
                            at::IntArrayRef levels, const at::Tensor& rng, double fraction,
                            int64_t stream) {
    at::AutoDispatchBelowADInplaceOrView guard;
    return ops::scalar_noise(codes, levels, rng, fraction, stream);
  }

  static variable_list backward(AutogradContext* /*ctx*/, const variable_list& grads) {
    return {grads[0], at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor scalar_noise(const at::Tensor& codes, at::IntArrayRef levels, const at::Tensor& rng,
                        double fraction, int64_t stream) {
  return detail::differentiable<ScalarNoise>(codes, levels, rng, fraction, stream);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) { m.impl("scalar_noise", scalar_noise); }

}  // namespace torchvq
