// The codebook diversity loss on several ranks, which are threads of this program. The oracle is
// one process with the concatenated batch.
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/utils.h>

#include <torchvq/modules/residual_vq.h>

#include "distributed/ranks.h"
#include "distributed/synced_modules_support.h"

namespace torchvq::synced_diversity_test {
namespace {

using testing::Batch;
using testing::batch_of;
using testing::Configure;
using testing::group_of;
using testing::joined;
using testing::kDim;
using testing::on_ranks;
using testing::options_with;

/// The loss of a batch and its gradients.
struct Scores {
  double loss;
  torch::Tensor tokens;
  std::vector<torch::Tensor> parameters;
};

using Score = std::function<Scores(const Batch&)>;

torch::Tensor gradient_of(const torch::Tensor& tensor) {
  return tensor.grad().defined() ? tensor.grad().clone() : torch::zeros_like(tensor);
}

template <typename Call, typename Holder>
Score score_of(Holder holder) {
  return [holder](const Batch& batch) mutable {
    holder->zero_grad();
    const auto x = batch.x.clone().requires_grad_();
    const auto loss = holder(x, Call().mask(batch.mask)).loss.sum();
    loss.backward();
    Scores scores{loss.template item<double>(), gradient_of(x), {}};
    for (const auto& parameter : holder->parameters()) {
      scores.parameters.push_back(gradient_of(parameter));
    }
    return scores;
  };
}

using MakeScore = std::function<Score(const std::optional<std::string>& group)>;

/// Options whose only loss is the diversity.
VectorQuantizeOptions diverse(const std::optional<std::string>& group) {
  const auto only = [](VectorQuantizeOptions& options) {
    options.commitment_weight(0).codebook_diversity_loss_weight(1).codebook_diversity_temperature(
        3);
  };
  return options_with(only, group);
}

MakeScore diverse_single(const Configure& configure) {
  return [configure](const auto& group) {
    auto options = diverse(group);
    configure(options);
    return score_of<VectorQuantizeForwardOptions>(VectorQuantize(options));
  };
}

MakeScore diverse_residual(const std::function<void(ResidualVQOptions&)>& configure,
                           const std::vector<double>& temperatures = {}) {
  return [configure, temperatures](const auto& group) {
    auto options = ResidualVQOptions(kDim).num_quantizers(3).codebook_size(24).vq(diverse(group));
    configure(options);
    ResidualVQ stack(options);
    for (size_t level = 0; level < temperatures.size(); ++level) {
      stack->levels[level]->options.codebook_diversity_temperature(temperatures[level]);
    }
    return score_of<ResidualVQForwardOptions>(stack);
  };
}

const std::map<std::string, MakeScore>& diverse_cases() {
  static const std::map<std::string, MakeScore> all = {
      {"default", diverse_single([](auto&) {})},
      {"cosine", diverse_single([](auto& o) { o.use_cosine_sim(true); })},
      {"separate_heads", diverse_single([](auto& o) {
         o.heads(2).codebook_dim(3).separate_codebook_per_head(true);
       })},
      {"learnable", diverse_single([](auto& o) { o.learnable_codebook(true).ema_update(false); })},
      {"residual", diverse_residual([](auto&) {})},
      {"residual_temperatures", diverse_residual([](auto&) {}, {3, 30, 0.5})},
      {"residual_dropout", diverse_residual([](auto& o) { o.quantize_dropout(true); })},
      {"residual_shared", diverse_residual([](auto& o) { o.shared_codebook(true); })},
      {"implicit", diverse_residual([](auto& o) { o.implicit_neural_codebook(true); })},
  };
  return all;
}

void expect_close(const torch::Tensor& actual, const torch::Tensor& expected) {
  EXPECT_TRUE(torch::allclose(actual, expected, 1e-4, 1e-7))
      << (actual - expected).abs().max().item<float>();
}

/// Checks each rank's loss; the gradients of its own tokens, divided by the number of ranks as
/// averaging does; and the mean of the ranks' gradients of the parameters.
void expect_scores_of_one(const std::vector<Scores>& ranks, const Scores& expected) {
  std::vector<torch::Tensor> tokens;
  const auto size = static_cast<double>(ranks.size());
  for (const auto& rank : ranks) {
    EXPECT_NEAR(rank.loss, expected.loss, 1e-5 * std::abs(expected.loss));
    tokens.push_back(rank.tokens / size);
  }
  EXPECT_GT(expected.tokens.abs().max().item<float>(), 1e-5);
  expect_close(torch::cat(tokens, 1), expected.tokens);
  for (size_t index = 0; index < expected.parameters.size(); ++index) {
    auto mean = torch::zeros_like(expected.parameters[index]);
    for (const auto& rank : ranks) mean += rank.parameters[index] / size;
    expect_close(mean, expected.parameters[index]);
  }
}

class SyncedDiversity : public ::testing::TestWithParam<int> {};

TEST_P(SyncedDiversity, IsThatOfAllTokens) {
  const int size = GetParam();
  constexpr int kScored = 4;
  for (const auto& [name, make] : diverse_cases()) {
    SCOPED_TRACE(name);
    torch::manual_seed(100);
    const auto oracle = make(std::nullopt);
    std::vector<Score> models;
    for (int rank = 0; rank < size; ++rank) {
      torch::manual_seed(100);
      models.push_back(make(group_of(rank)));
    }
    std::vector<std::vector<Scores>> found(kScored, std::vector<Scores>(size));
    const auto errors = on_ranks(size, [&](int rank, const std::string&) {
      for (int step = 0; step < kScored; ++step) {
        found[step][rank] = models[rank](batch_of(step, size)[rank]);
      }
    });
    ASSERT_EQ(errors, std::vector<std::string>(size));
    for (int step = 0; step < kScored; ++step) {
      SCOPED_TRACE(step);
      expect_scores_of_one(found[step], oracle(joined(batch_of(step, size))));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, SyncedDiversity, ::testing::Values(2, 3));

TEST(SyncedDiversityTest, OfAStackIsOneAllReduce) {
  std::vector<Score> models;
  for (int rank = 0; rank < 2; ++rank) {
    models.push_back(diverse_cases().at("residual_dropout")(group_of(rank)));
  }
  distributed::reset_traffic();
  const auto errors = on_ranks(2, [&](int rank, const std::string&) {
    for (int step = 0; step < 4; ++step) models[rank](batch_of(step, 2)[rank]);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_EQ(distributed::traffic().all_reduces, 2 * 4 * 2) << "statistics and totals";
}

}  // namespace
}  // namespace torchvq::synced_diversity_test
