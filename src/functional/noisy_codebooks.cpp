#include "functional/noisy_codebooks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>

#include <torchvq/ops/random_numbers.h>

#include "functional/on_one_thread.h"

namespace torchvq::functional {
namespace {

at::Tensor spread_of(const at::Tensor& codes) {
  at::Tensor spread;
  on_one_thread([&] { spread = (codes - codes.mean(0)).square().mean(0).sqrt(); });
  return spread;
}

at::Tensor with_noise(const at::Tensor& codebook, const NoiseOfCodes& noise, int64_t stream) {
  const auto rng = at::tensor({noise.seed, noise.step}, at::kLong);
  const auto codes = codebook.to(at::kDouble);
  const auto width = spread_of(codes).clamp_max(noise.widest) * noise.scale;
  const auto drawn = ops::random_numbers(rng, RandomPurpose::kNoise, Distribution::kNormal,
                                         codebook.sym_sizes(), at::kDouble, stream);
  return (codes + width * drawn).to(at::kFloat).contiguous();
}

}  // namespace

std::vector<at::Tensor> noisy_codebooks(const std::vector<at::Tensor>& codebooks,
                                        const NoiseOfCodes& noise,
                                        const distributed::Group& group) {
  std::vector<at::Tensor> noisy;
  for (const auto& codebook : codebooks) {
    const auto stream = static_cast<int64_t>(noisy.size());
    noisy.push_back(with_noise(codebook.cpu(), noise, stream).to(codebook.device()));
    group.broadcast_(noisy.back(), "codebooks with noise");
  }
  return noisy;
}

}  // namespace torchvq::functional
