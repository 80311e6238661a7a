// The engine without Python: ranks as threads of one program, joined by Gloo over a hash store. The
// oracle is one process with the concatenated batch.
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/types.h>

#include <torchvq/distributed/all_reduce.h>
#include <torchvq/distributed/replicas.h>
#include <torchvq/distributed/synced_code_statistics.h>
#include <torchvq/distributed/synced_kmeans.h>
#include <torchvq/distributed/synced_replace_dead_codes_.h>
#include <torchvq/modules/state_dict.h>
#include <torchvq/modules/vector_quantize.h>
#include <torchvq/ops/code_exponents.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/kmeans.h>

#include "distributed/fingerprint.h"
#include "distributed/ranks.h"
#include "expect_throw.h"

namespace torchvq::distributed::engine_test {
namespace {

using testing::on_ranks;

const std::vector<int64_t> kTokens = {50, 0, 23};

torch::Tensor tokens_of(int rank) {
  const auto generator = at::detail::createCPUGenerator(rank + 1);
  return torch::randn({2, kTokens[rank], 4}, generator);
}

torch::Tensor all_tokens(int size) {
  std::vector<torch::Tensor> parts;
  for (int rank = 0; rank < size; ++rank) parts.push_back(tokens_of(rank));
  return torch::cat(parts, 1);
}

torch::Tensor indices_of(const torch::Tensor& x) { return x.select(2, 0).gt(0).to(torch::kLong); }

torch::Tensor codebook() { return torch::arange(24, torch::kFloat).view({2, 3, 4}).sub(12).div(8); }

SyncOptions of(const std::string& name) { return {name, "engine"}; }

TEST(Engine, StatisticsOfRanksAreThoseOfOneProcess) {
  const auto x = all_tokens(3);
  const auto exponents = ops::code_exponents(codebook());
  const auto [counts, sums, used] = ops::code_statistics(x, indices_of(x), exponents);
  const auto errors =
      on_ranks(3, [&, &counts = counts, &sums = sums](int rank, const std::string& name) {
        const auto own = tokens_of(rank);
        SyncedStatisticsOptions options;
        options.group_name = name;
        const auto got = synced_code_statistics({own}, {indices_of(own)}, {exponents}, options);
        EXPECT_TRUE(torch::equal(got.counts[0], counts));
        EXPECT_TRUE(torch::equal(got.sums[0], sums));
      });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(Engine, KmeansOfRanksIsThatOfOneProcess) {
  const auto rng = torch::tensor({7, 0}, torch::kLong);
  const auto wanted = ops::kmeans(all_tokens(3), 8, rng).first;
  const auto errors = on_ranks(3, [&](int rank, const std::string& name) {
    SyncedKmeansOptions options;
    options.group_name = name;
    EXPECT_TRUE(torch::equal(synced_kmeans(tokens_of(rank), 8, rng, options).first, wanted));
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

struct State {
  torch::Tensor embed = codebook(), embed_avg = codebook(), cluster_size = torch::full({2, 3}, 0.5);
};

at::Tensor replace(State& state, const torch::Tensor& x, const std::string& name) {
  SyncedDeadCodeOptions options;
  options.group_name = name;
  return synced_replace_dead_codes_({state.embed, state.embed_avg, state.cluster_size}, {x},
                                    {torch::zeros({2, 3}, torch::kLong)},
                                    {torch::tensor({7, 0}, torch::kLong)}, options);
}

TEST(Engine, DeadCodesOfRanksAreThoseOfOneProcess) {
  State wanted;
  EXPECT_EQ(replace(wanted, all_tokens(3), "").sum().item<int64_t>(), 6);
  const auto errors = on_ranks(3, [&](int rank, const std::string& name) {
    State state;
    replace(state, tokens_of(rank), name);
    EXPECT_TRUE(torch::equal(state.embed, wanted.embed));
    EXPECT_TRUE(torch::equal(state.embed_avg, wanted.embed_avg));
    EXPECT_TRUE(torch::equal(state.cluster_size, wanted.cluster_size));
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(Engine, RanksWithOtherSizesHearItFromTheHandshake) {
  const auto errors = on_ranks(2, [&](int rank, const std::string& name) {
    HandshakeOptions options;
    options.group_name = name;
    options.label = "encoder.vq";
    options.handle = new_handle();
    const auto embed = torch::zeros({1, 32 + 16 * rank, 4});
    handshake_({embed, torch::tensor({7, 3}, torch::kLong)}, options);
  });
  for (const auto& error : errors) {
    EXPECT_NE(error.find("encoder.vq, step 3: expected all ranks to have the same quantizer"),
              std::string::npos);
    EXPECT_NE(error.find("[1, 32, 4]"), std::string::npos);
    EXPECT_NE(error.find("[1, 48, 4]"), std::string::npos);
  }
}

TEST(Engine, ErrorsNameOnlyWhatDiffers) {
  const auto errors_of = [](const std::vector<std::string>& signatures) {
    return on_ranks(3, [&](int rank, const std::string& name) {
      HandshakeOptions options;
      options.group_name = name;
      options.handle = new_handle();
      options.signature = signatures[rank];
      handshake_({torch::zeros({2, 3})}, options);
    });
  };
  const auto expect = [](const std::vector<std::string>& errors, const std::string& differences) {
    for (const auto& error : errors) {
      EXPECT_NE(error.find(", but got on " + differences + "\nLikely"), std::string::npos) << error;
    }
  };
  expect(errors_of({"[4, 2] codes, decay 0.8; eps 1", "[4, 2] codes, decay 0.9; eps 1",
                    "[4, 2] codes, decay 0.8; eps 1"}),
         "ranks 0, 2: decay 0.8; rank 1: decay 0.9");
  expect(errors_of({"[4, 2] codes", "[4, 3] codes", "[4, 3] codes"}),
         "rank 0: [4, 2] codes; ranks 1, 2: [4, 3] codes");
  // Of unlike numbers of parts: nothing says which of them correspond.
  expect(errors_of({"3 levels, decay 0.8, eps 1", "decay 0.8, eps 1", "eps 1, decay 0.8"}),
         "rank 0: 3 levels; ranks 1, 2: none of it");
}

TEST(Engine, SignaturesMayAlternateAndBeLong) {
  reset_traffic();
  const std::string options(3000, 'x');
  const auto errors = on_ranks(2, [&](int rank, const std::string& name) {
    HandshakeOptions call;
    call.group_name = name;
    call.handle = new_handle();
    for (int step = 0; step < 6; ++step) {
      call.signature = options + (step % 2 == 0 ? "a" : "b");
      handshake_({torch::zeros({3})}, call);
    }
    call.signature = options + std::to_string(rank);
    handshake_({torch::zeros({3})}, call);
  });
  for (const auto& error : errors) {
    EXPECT_NE(error.find("expected all ranks to have the same quantizer"), std::string::npos);
    EXPECT_NE(error.find("xxx... (hash "), std::string::npos) << error;
  }
  EXPECT_EQ(traffic().all_gathers, 2 * 3) << "a handshake for each signature";
}

TEST(Engine, RanksInOtherStepsHearItFromTheHeader) {
  const auto errors = on_ranks(2, [&](int rank, const std::string& name) {
    const auto own = tokens_of(0);
    SyncedStatisticsOptions options;
    options.group_name = name;
    options.rng = torch::tensor({7, 3 + rank}, torch::kLong);
    (void)synced_code_statistics({own}, {indices_of(own)}, {ops::code_exponents(codebook())},
                                 options);
  });
  for (const auto& error : errors) {
    EXPECT_NE(error.find("rank 0: step 3"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 1: step 4"), std::string::npos) << error;
  }
}

TEST(Engine, ARankThatEndsIsAnErrorWithNameAndReason) {
  const auto errors = on_ranks(2, [&](int rank, const std::string& name) {
    if (rank == 1) return;
    (void)all_reduce_statistics(torch::ones(3), of(name));
  });
  EXPECT_EQ(errors[0].find("engine: rank 0 of 2"), 0U) << errors[0];
  EXPECT_NE(errors[0].find("Likely reasons"), std::string::npos);
  EXPECT_EQ(errors[1], "");
}

/// A group whose all-gathers fail while `loses` is set, as they do where a rank has ended.
struct FragileGloo : c10d::ProcessGroupGloo {
  using ProcessGroupGloo::ProcessGroupGloo;
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                           std::vector<at::Tensor>& inputs,
                                           const c10d::AllgatherOptions& options) override {
    TORCH_CHECK(!loses, "the connection was closed");
    return ProcessGroupGloo::allgather(outputs, inputs, options);
  }
  static inline thread_local bool loses = false;
};

/// A quantizer in whose steps codes die.
VectorQuantize dying(const std::optional<std::string>& group) {
  torch::manual_seed(7);
  return VectorQuantize(
      VectorQuantizeOptions(4).codebook_size(16).threshold_ema_dead_code(2).process_group(group));
}

void accumulate(VectorQuantize& vq, const torch::Tensor& x) {
  vq(x, VectorQuantizeForwardOptions().accum_ema_update(true));
}

void expect_state(const VectorQuantize& vq, const std::map<std::string, torch::Tensor>& expected) {
  for (const auto& [name, value] : state_dict(*vq)) {
    EXPECT_TRUE(torch::equal(value, expected.at(name))) << name;
  }
}

TEST(Engine, AStepWithKeptStatisticsThatLosesItsCandidatesIsUndone) {
  const auto earlier = torch::randn({2, 6, 4}), x = torch::randn({2, 6, 4});
  auto alone = dying(std::nullopt);
  accumulate(alone, earlier);
  const auto of_alone = state_dict(*alone);
  std::map<std::string, torch::Tensor> before;
  for (const auto& [name, value] : of_alone) before[name] = value.clone();
  alone(x);
  std::vector<VectorQuantize> ranks{dying(testing::group_of(0)), dying(testing::group_of(1))};
  const auto errors = on_ranks<FragileGloo>(2, [&](int rank, const std::string& /*name*/) {
    auto& vq = ranks[rank];
    accumulate(vq, earlier.narrow(0, rank, 1));
    FragileGloo::loses = true;
    testing::expect_throw_with<c10::DistBackendError>([&] { vq(x.narrow(0, rank, 1)); },
                                                      "sharing candidates for dead codes");
    FragileGloo::loses = false;
    expect_state(vq, before);
    vq(x.narrow(0, rank, 1));  // with the statistics of the step before
    expect_state(vq, state_dict(*alone));
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST(Engine, TrafficIsCounted) {
  reset_traffic();
  on_ranks(2, [&](int /*rank*/, const std::string& name) {
    (void)all_reduce_statistics(torch::ones(3), of(name));
  });
  EXPECT_EQ(traffic().all_reduces, 2);
  EXPECT_EQ(traffic().bytes, 2 * 3 * 4);
  (void)all_reduce_statistics(torch::ones(3));
  EXPECT_EQ(traffic().all_reduces, 2);
}

TEST(Engine, HashesByOperatorsEqualThoseOfTheCpu) {
  for (const auto dtype :
       {torch::kBool, torch::kInt8, torch::kHalf, torch::kFloat, torch::kDouble, torch::kLong}) {
    for (const int64_t size : {0, 1, 63, 64, 200}) {
      const auto values = torch::randn({size, 3}).mul(50).to(dtype);
      EXPECT_TRUE(torch::equal(fingerprint(values), fingerprint_by_operators(values)))
          << dtype << size;
    }
  }
}

}  // namespace
}  // namespace torchvq::distributed::engine_test
