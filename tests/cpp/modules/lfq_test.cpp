// LFQ in C++: codes, losses by listing all codes in float64, masks, layouts, state, errors.
#include <cmath>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/any.h>
#include <torch/utils.h>

#include <torchvq/functional/lookup_free.h>
#include <torchvq/modules/lfq.h>
#include <torchvq/modules/state_dict.h>
#include <torchvq/ops/sign_entropy.h>
#include <torchvq/ops/sign_quantize.h>

namespace torchvq::lfq_test {
namespace {

constexpr int64_t kBits = 5;

LFQOptions options() { return LFQOptions().dim(kBits).commitment_loss_weight(0.25); }

torch::Tensor normal(at::IntArrayRef sizes, double scale = 0.3) {
  torch::manual_seed(7);
  return torch::randn(sizes) * scale;
}

/// Entropies of tokens (N, D) by softmax over all codes: per sample, batch.
std::pair<torch::Tensor, torch::Tensor> by_enumeration(const torch::Tensor& x, double sharpness) {
  const auto codes =
      ops::sign_decode(torch::arange(int64_t{1} << x.size(1)), x.size(1), 1.0, at::kDouble);
  const auto log_p = (x.to(at::kDouble).matmul(codes.t()) * (sharpness / 2)).log_softmax(-1);
  const auto log_mean = log_p.logsumexp(0) - std::log(static_cast<double>(x.size(0)));
  return {-(log_p.exp() * log_p).sum(-1).mean(), -(log_mean.exp() * log_mean).sum()};
}

TEST(LFQTest, CodesAreSignsAndIndicesTheirBits) {
  LFQ lfq(options().codebook_scale(0.5));
  lfq->eval();
  const auto output = lfq(torch::tensor({{{1.0F, -2.0F, 0.0F, 3.0F, -0.0F}}}));
  EXPECT_EQ(output.indices.item<int64_t>(), 0b10010);
  EXPECT_TRUE(
      at::equal(output.quantized.flatten(), torch::tensor({0.5F, -0.5F, -0.5F, 0.5F, -0.5F})));
  EXPECT_TRUE(at::equal(lfq->indices_to_codes(output.indices), output.quantized));
  EXPECT_EQ(output.entropy_aux_loss.item<float>(), 0);
  EXPECT_EQ(lfq->codebook().sizes(), (std::vector<int64_t>{32, kBits}));
  EXPECT_TRUE(at::equal(lfq->bits_to_codes(torch::ones({kBits})), lfq->codebook()[31]));
}

TEST(LFQTest, AWriteToTheLossLeavesItsTerms) {
  LFQ lfq(options());
  lfq->eval();
  const auto output = lfq(normal({2, 9, kBits}));
  output.entropy_aux_loss.add_(1);
  const auto& [per_sample, batch, commitment] = output.loss_breakdown;
  per_sample.add_(1);
  EXPECT_EQ(batch.item<float>(), 0);
  EXPECT_EQ(commitment.item<float>(), 0);
}

TEST(LFQTest, LossAndGradientAreThoseOfAllCodes) {
  LFQ lfq(options().diversity_gamma(2).entropy_loss_weight(0.3));
  auto x = normal({2, 9, kBits}, 0.02).to(at::kDouble).requires_grad_();
  const auto output = lfq(x, 50.0);
  auto wide = x.detach().clone().requires_grad_();
  const auto [per_sample, batch] = by_enumeration(wide.flatten(0, 1), 200);
  const auto commitment = (wide - output.quantized.detach()).square().mean();
  const auto loss = 0.3 * (per_sample - 2 * batch) + 0.25 * commitment;
  EXPECT_TRUE(at::allclose(output.loss_breakdown.per_sample_entropy, per_sample));
  EXPECT_TRUE(at::allclose(output.loss_breakdown.batch_entropy, batch));
  EXPECT_TRUE(at::allclose(output.loss_breakdown.commitment, commitment));
  EXPECT_TRUE(at::allclose(output.entropy_aux_loss, loss));
  output.entropy_aux_loss.backward();
  loss.backward();
  EXPECT_TRUE(at::allclose(x.grad(), wide.grad(), 1e-8, 1e-10));
}

TEST(LFQTest, StraightThroughWithAndWithoutActivation) {
  auto x = normal({1, 6, kBits}).requires_grad_();
  LFQ plain(options().entropy_loss_weight(0));
  plain(x).quantized.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::ones_like(x)));
  auto y = x.detach().clone().requires_grad_();
  LFQ bent(options().straight_through_activation(torch::nn::AnyModule(torch::nn::Tanh())));
  bent(y).quantized.sum().backward();
  EXPECT_TRUE(at::allclose(y.grad(), 1 - y.tanh().square()));
}

TEST(LFQTest, MaskedIsAbsent) {
  for (const auto& own : {options(), options().dim(10).codebook_size(8).num_codebooks(2),
                          options().spherical(true), options().orthogonal_rotation(true)}) {
    torch::manual_seed(3);
    LFQ lfq(own);
    auto x = normal({2, 5, lfq->dim()});
    const auto mask =
        torch::tensor({{true, false, true, true, false}, {false, true, true, true, true}});
    x.index_put_({mask.logical_not()}, std::nan(""));
    const auto found = lfq(x, 100.0, mask);
    const auto right = lfq(x.index({mask}).unsqueeze(0));
    EXPECT_TRUE(at::allclose(found.entropy_aux_loss, right.entropy_aux_loss, 1e-5, 1e-7));
    EXPECT_TRUE(at::equal(found.indices.index({mask}), right.indices[0]));
    EXPECT_TRUE(found.indices.index({mask.logical_not()}).eq(-1).all().item<bool>());
    EXPECT_TRUE(found.quantized.index({mask.logical_not()}).eq(0).all().item<bool>());
  }
}

TEST(LFQTest, EveryLayoutDecodesItsIndices) {
  for (const auto& own : {options(), options().dim(7).codebook_size(8),
                          options().dim(6).codebook_size(8).num_codebooks(2),
                          options().spherical(true).orthogonal_rotation(true)}) {
    LFQ lfq(own);
    lfq->eval();
    const int64_t dim = lfq->dim();
    for (const auto& shape : std::vector<std::vector<int64_t>>{
             {4, dim}, {2, 3, dim}, {2, dim, 3, 4}, {1, dim, 2, 2, 3}}) {
      const auto output = lfq(normal(shape));
      EXPECT_EQ(output.quantized.sizes(), shape);
      EXPECT_TRUE(
          at::allclose(lfq->indices_to_codes(output.indices), output.quantized, 1e-5, 1e-6));
    }
  }
}

TEST(LFQTest, LossOfTheLargestCodebooksIsFinite) {
  LFQ lfq(LFQOptions().codebook_size(int64_t{1} << 62).spherical(true));
  auto x = normal({1, 4, 62}).requires_grad_();
  const auto output = lfq(x);
  output.entropy_aux_loss.backward();
  EXPECT_TRUE(at::isfinite(x.grad()).all().item<bool>());
  EXPECT_TRUE(at::equal(lfq->indices_to_codes(output.indices), output.quantized.detach()));
}

TEST(LFQTest, SubsetsAreDrawnInEachStepAndResume) {
  LFQ first(options().frac_per_sample_entropy(0.5)), second(options().frac_per_sample_entropy(0.5));
  const auto x = normal({1, 40, kBits});
  first(x);
  load_state_dict(*second, state_dict(*first));
  EXPECT_EQ(first(x).entropy_aux_loss.item<float>(), second(x).entropy_aux_loss.item<float>());
  EXPECT_EQ(first->rng[1].item<int64_t>(), 2);
  first->eval();
  first(x);
  EXPECT_EQ(first->rng[1].item<int64_t>(), 2);
}

TEST(LFQTest, StateHasTheNamesOfPython) {
  LFQ lfq(options().dim(7).codebook_size(8).orthogonal_rotation(true));
  std::vector<std::string> names;
  for (const auto& [name, value] : state_dict(*lfq)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"mask", "orthogonal_rot", "project_in.bias",
                                             "project_in.weight", "project_out.bias",
                                             "project_out.weight"}));
  EXPECT_TRUE(at::equal(lfq->bit_values, torch::tensor({4, 2, 1}, at::kLong)));
  LFQ cosine(options().dim(7).codebook_size(8).cosine_sim_project_in(true));
  EXPECT_EQ(state_dict(*cosine).at("project_in.weight").sizes(), (std::vector<int64_t>{7, 3}));
}

TEST(LFQTest, CopiesAreTheirOwn) {
  LFQ lfq(options().dim(7).codebook_size(8).frac_per_sample_entropy(0.5));
  auto copy = std::dynamic_pointer_cast<LFQImpl>(lfq->clone());
  const auto x = normal({2, 5, 7});
  EXPECT_TRUE(at::equal(lfq(x).quantized, copy->forward(x).quantized));
  {
    const torch::NoGradGuard no_grad;
    lfq->linear_in->weight.zero_();
  }
  EXPECT_TRUE(copy->linear_in->weight.ne(0).any().item<bool>());
}

TEST(LFQTest, HalfPrecisionKeepsTokens) {
  LFQ lfq(options().orthogonal_rotation(true));
  const auto x = normal({2, 9, kBits}).to(at::kBFloat16);
  const auto right = lfq(x.to(at::kFloat));
  lfq->to(at::kBFloat16);
  const auto found = lfq(x);
  EXPECT_EQ(found.quantized.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::equal(found.indices, right.indices));
}

TEST(LFQTest, OptionsAndCallsAreChecked) {
  EXPECT_THROW(LFQ{LFQOptions()}, c10::ValueError);
  EXPECT_THROW(LFQ(options().codebook_size(100)), c10::ValueError);
  EXPECT_THROW(LFQ(options().num_codebooks(0)), c10::ValueError);
  EXPECT_THROW(LFQ(options().frac_per_sample_entropy(0)), c10::ValueError);
  EXPECT_THROW(LFQ(options().soft_clamp_input_value(0.5)), c10::ValueError);
  EXPECT_THROW(LFQ(options().codebook_size(8).has_projections(false)), c10::ValueError);
  LFQ lfq(options());
  EXPECT_THROW(lfq(torch::zeros({2, 3, 4})), c10::ValueError);
  EXPECT_THROW(lfq(torch::zeros({2, 3, kBits}, at::kLong)), c10::TypeError);
  EXPECT_THROW(lfq(torch::zeros({2, 3, kBits}), 100.0, torch::ones({2, 3})), c10::TypeError);
  EXPECT_THROW(lfq->indices_to_codes(torch::tensor({32}, at::kLong)), c10::IndexError);
}

TEST(LFQTest, ARotationInFloat64DecodesInFloat64) {
  LFQ lfq(options().orthogonal_rotation(true));
  lfq->to(at::kDouble);
  lfq->eval();
  const auto output = lfq(normal({1, 3, kBits}).to(at::kDouble));
  EXPECT_TRUE(at::allclose(lfq->indices_to_codes(output.indices), output.quantized, 0, 1e-12));
}

TEST(LFQTest, BitsAreSetAboveZero) {
  LFQ module(LFQOptions().dim(4));
  const auto tiny = torch::full({4}, 1e-50, torch::kDouble);
  EXPECT_TRUE(at::equal(module->bits_to_codes(tiny), torch::ones({4})));
  EXPECT_TRUE(at::equal(module->bits_to_codes(tiny.mul(-1)), -torch::ones({4})));
  EXPECT_THROW(module->bits_to_codes(torch::ones({3})), c10::ValueError);
  EXPECT_THROW(module->bits_to_codes(torch::ones({4}, torch::kComplexFloat)), c10::TypeError);
}

}  // namespace
}  // namespace torchvq::lfq_test
