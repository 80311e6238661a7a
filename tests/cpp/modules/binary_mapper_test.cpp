#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torchvq/modules/binary_mapper.h>
#include <torchvq/modules/state_dict.h>

namespace torchvq::binary_mapper_test {
namespace {

using Call = BinaryMapperForwardOptions;

at::Tensor bits_of(int64_t count) {
  const auto codes = at::arange(int64_t{1} << count).unsqueeze(-1);
  return codes.bitwise_right_shift(at::arange(count)).bitwise_and(1);
}

TEST(BinaryMapperTest, EvaluationTakesTheLikelierBitsAndChangesNothing) {
  BinaryMapper mapper(BinaryMapperOptions(4));
  mapper->eval();
  const auto logits = at::randn({5, 4});
  const auto before = mapper->rng.clone();
  const auto output = mapper(logits);
  const auto expected = logits.gt(0).to(at::kLong).mul(at::tensor({1, 2, 4, 8})).sum(-1);
  EXPECT_TRUE(at::equal(output.indices, expected));
  EXPECT_TRUE(at::equal(output.one_hot, at::one_hot(expected, 16).to(at::kFloat)));
  EXPECT_EQ(output.aux_kl_loss.item<float>(), 0);
  EXPECT_TRUE(at::equal(mapper->rng, before));
}

TEST(BinaryMapperTest, GradientIsThatOfTheProbabilities) {
  BinaryMapper mapper(BinaryMapperOptions(3).kl_loss_threshold(0));
  const auto logits = at::randn({6, 3}, at::kDouble).requires_grad_();
  const auto weight = at::randn({8}, at::kDouble);
  const auto output = mapper(logits, Call().temperature(0.5));
  ((output.one_hot * weight).sum() + output.aux_kl_loss).backward();
  const auto twin = logits.detach().clone().requires_grad_();
  const auto soft = [&](const at::Tensor& l) {
    const auto p = l.sigmoid().unsqueeze(-2);
    return at::where(bits_of(3).eq(1), p, 1 - p).prod(-1);
  };
  const auto q = soft(twin);
  ((soft(twin / 0.5) * weight).sum() + (q * (q * 8).log()).sum(-1).mean()).backward();
  EXPECT_TRUE(at::allclose(logits.grad(), twin.grad(), 1e-9, 1e-11));
}

TEST(BinaryMapperTest, DrawsFollowTheProbabilitiesAndCopiesRepeatThem) {
  BinaryMapper mapper(BinaryMapperOptions(2));
  const auto logits = at::tensor({0.7, -1.1}).expand({40000, 2});
  const auto copy = std::dynamic_pointer_cast<BinaryMapperImpl>(mapper->clone());
  const auto drawn = mapper(logits).indices;
  EXPECT_TRUE(at::equal(drawn, copy->forward(logits).indices));
  EXPECT_FALSE(at::equal(drawn, mapper(logits).indices));
  const auto share = at::bincount(drawn, {}, 4).to(at::kDouble) / 40000;
  const auto p = logits[0].sigmoid();
  const auto expected = at::where(bits_of(2).eq(1), p, 1 - p).prod(-1);
  EXPECT_LT((share - expected).abs().max().item<double>(), 0.01);
}

TEST(BinaryMapperTest, MaskedTokensAreAbsent) {
  BinaryMapper mapper(BinaryMapperOptions(3).kl_loss_threshold(0));
  const auto twin = std::dynamic_pointer_cast<BinaryMapperImpl>(mapper->clone());
  const auto logits = at::randn({4, 6, 3});
  const auto mask = at::rand({4, 6}) < 0.5;
  const auto output = mapper(logits, Call().mask(mask));
  const auto alone = twin->forward(logits.index({mask}));
  EXPECT_TRUE(at::equal(output.indices.index({mask}), alone.indices));
  EXPECT_TRUE(output.indices.index({mask.logical_not()}).eq(-1).all().item<bool>());
  EXPECT_TRUE(at::allclose(output.aux_kl_loss, alone.aux_kl_loss));
}

TEST(BinaryMapperTest, StateComesBackAndMayLackTheSeed) {
  BinaryMapper one(BinaryMapperOptions(3)), two(BinaryMapperOptions(3));
  const auto logits = at::randn({9, 3});
  one(logits);
  load_state_dict(*two, state_dict(*one));
  EXPECT_TRUE(at::equal(one(logits).indices, two(logits).indices));
  load_state_dict(*two, {});
  EXPECT_EQ(two->rng[1].item<int64_t>(), 0);
}

TEST(BinaryMapperTest, LogProbabilityAndEntropyByHand) {
  BinaryMapper mapper(BinaryMapperOptions(2));
  const auto logits = at::randn({4, 2}, at::kDouble);
  const auto p = logits.sigmoid().unsqueeze(-2);
  const auto q = at::where(bits_of(2).eq(1), p, 1 - p).prod(-1);
  const auto codes = at::arange(4);
  EXPECT_TRUE(at::allclose(mapper->log_prob(logits, codes), q.diagonal().log()));
  EXPECT_TRUE(at::allclose(mapper->binary_entropy(logits), -(q * q.log()).sum(-1)));
}

TEST(BinaryMapperTest, BadArgumentsAreRefused) {
  EXPECT_THROW(BinaryMapper(BinaryMapperOptions(0)), c10::ValueError);
  EXPECT_THROW(BinaryMapper(BinaryMapperOptions(31)), c10::ValueError);
  BinaryMapper mapper(BinaryMapperOptions(3));
  EXPECT_THROW(mapper(at::zeros({2, 4})), c10::ValueError);
  EXPECT_THROW(mapper(at::zeros({2, 3}, at::kLong)), c10::TypeError);
  EXPECT_THROW(mapper(at::zeros({2, 3}), Call().temperature(-1)), c10::ValueError);
}

}  // namespace
}  // namespace torchvq::binary_mapper_test
