// Threads: one call that uses several, and several threads that call. ThreadSanitizer checks these
// (`make tsan`), at sizes for which kernels split their work.
#include <thread>

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <torchvq/modules/binary_mapper.h>
#include <torchvq/modules/fsp.h>
#include <torchvq/modules/fsq.h>
#include <torchvq/modules/grouped_residual_vq.h>
#include <torchvq/modules/latent_quantize.h>
#include <torchvq/modules/lfq.h>
#include <torchvq/modules/residual_fsq.h>
#include <torchvq/modules/residual_lfq.h>

namespace torchvq::threads_test {
namespace {

constexpr int kThreads = 4;
using Tensors = std::vector<at::Tensor>;

template <typename Output>
at::Tensor quantized_of(const Output& output) {
  if constexpr (requires { output.one_hot; }) {
    return output.one_hot;
  } else {
    return output.quantized;
  }
}

template <typename Output>
at::Tensor loss_of(const Output& output) {
  if constexpr (requires { output.loss; }) {
    return output.loss.sum();
  } else if constexpr (requires { output.norm_loss; }) {
    return output.norm_loss;
  } else if constexpr (requires { output.aux_kl_loss; }) {
    return output.aux_kl_loss.sum();
  } else if constexpr (requires { output.entropy_aux_loss; }) {
    return output.entropy_aux_loss;
  } else {
    return quantized_of(output).new_zeros({});
  }
}

/// Outputs, the gradient of the input and the state of two training steps.
template <typename Module, typename Options>
Tensors train(const Options& options, const at::Tensor& x, int threads) {
  at::set_num_threads(threads);
  torch::manual_seed(0);
  Module module(options);
  Tensors found;
  for (int step = 0; step < 2; ++step) {
    const auto input = (x * (1 + step)).requires_grad_();
    const auto output = module(input);
    const auto quantized = quantized_of(output);
    (quantized.square().sum() + loss_of(output)).backward();
    found.insert(found.end(), {quantized.detach(), output.indices, loss_of(output).detach()});
    found.push_back(input.grad());
  }
  for (const auto& buffer : module->buffers()) found.push_back(buffer);
  for (const auto& parameter : module->parameters()) found.push_back(parameter.grad());
  return found;
}

template <typename Module>
Tensors evaluate(Module& module, const at::Tensor& x) {
  const auto output = module(x);
  return {quantized_of(output), output.indices};
}

void expect_same(const Tensors& found, const Tensors& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (!expected[i].defined()) continue;
    EXPECT_TRUE(at::equal(found[i], expected[i])) << "tensor " << i;
  }
}

template <typename Module, typename Options>
void check(const char* name, const Options& options, const at::Tensor& x) {
  SCOPED_TRACE(name);
  const auto alone = train<Module>(options, x, 1);
  expect_same(train<Module>(options, x, kThreads), alone);

  torch::manual_seed(0);
  Module module(options);
  module(x);  // everything that a first forward initialises
  module->eval();
  const auto expected = evaluate(module, x);
  std::vector<Tensors> found(kThreads);
  std::vector<std::thread> callers;
  for (auto& own : found) {
    callers.emplace_back([&own, &module, &x] {
      const at::NoGradGuard no_grad;
      at::set_num_threads(2);
      own = evaluate(module, x);
    });
  }
  for (auto& caller : callers) caller.join();
  for (const auto& own : found) expect_same(own, expected);
}

at::Tensor normal(at::IntArrayRef sizes) {
  torch::manual_seed(1);
  return at::randn(sizes);
}

TEST(ThreadsTest, VectorQuantize) {
  const auto x = normal({4, 1500, 16});
  const auto with = [](const auto& configure) {
    auto options = VectorQuantizeOptions(16).codebook_size(64);
    configure(options);
    return options;
  };
  using Options = VectorQuantizeOptions;
  check<VectorQuantize>("default", with([](Options&) {}), x);
  check<VectorQuantize>("cosine", with([](Options& o) { o.use_cosine_sim(true); }), x);
  check<VectorQuantize>(
      "kmeans", with([](Options& o) { o.kmeans_init(true).threshold_ema_dead_code(50); }), x);
  check<VectorQuantize>("learnable", with([](Options& o) {
                          o.learnable_codebook(true).ema_update(false).orthogonal_reg_weight(0.1);
                        }),
                        x);
  check<VectorQuantize>(
      "diversity", with([](Options& o) {
        o.codebook_diversity_loss_weight(0.1).commitment_use_cross_entropy_loss(true);
      }),
      x);
  check<VectorQuantize>(
      "reparam", with([](Options& o) { o.directional_reparam(true).threshold_ema_dead_code(2); }),
      x);
  check<VectorQuantize>("sampling", with([](Options& o) { o.stochastic_sample_codes(true); }), x);
  check<VectorQuantize>("affine", with([](Options& o) { o.affine_param(true); }), x);
}

TEST(ThreadsTest, ResidualVQ) {
  const auto x = normal({4, 1500, 16});
  auto options = ResidualVQOptions(16).num_quantizers(3).codebook_size(32);
  check<ResidualVQ>("default", options, x);
  check<ResidualVQ>("beam", ResidualVQOptions(options).beam_size(4), x);
  check<ResidualVQ>("dropout", ResidualVQOptions(options).quantize_dropout(true), x);
}

TEST(ThreadsTest, ScalarsAndSigns) {
  const auto x = normal({4, 3000, 4});
  const std::vector<int64_t> levels = {8, 5, 5, 5};
  check<FSQ>("tanh", FSQOptions(levels), x);
  check<FSQ>("noise", FSQOptions(levels).preserve_symmetry(true).noise_dropout(0.5), x);
  check<ResidualFSQ>("residual", ResidualFSQOptions(levels, 3), x);
  check<FSP>("perturbed", FSPOptions(levels), x);
  check<LatentQuantize>("latent", LatentQuantizeOptions(levels, 4).channel_first(false), x);
  check<BinaryMapper>("bits", BinaryMapperOptions(4), x);
  const auto wide = normal({4, 1500, 12});
  const auto signs = LFQOptions().codebook_size(1 << 12).commitment_loss_weight(0.25);
  check<LFQ>("entropy", signs, wide);
  check<ResidualLFQ>("residual signs", ResidualLFQOptions(12, 2, 1 << 12).lfq(signs), wide);
}

}  // namespace
}  // namespace torchvq::threads_test
