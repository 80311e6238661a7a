// The replacement of dead codes in a module's steps.
#include <ATen/ops/_unique.h>

#include "modules/vector_quantize_support.h"

namespace torchvq::dead_codes_test {
namespace {

using namespace torchvq::testing;

constexpr int64_t kDim = 4;

TEST(DeadCodesTest, ComeBackAsTokens) {
  const auto far = normal({16, kDim}) * 0.01 + 1000;
  const auto options = Options(kDim).codebook_size(16);
  for (const auto& with : {Options(options).threshold_ema_dead_code(1),
                           Options(options).dead_code_threshold_fraction(0.5)}) {
    auto module = make(with);
    module->set_codebook(far);
    const auto x = normal({1, 200, kDim});
    for (int i = 0; i < 30; ++i) {
      module(x);
    }
    EXPECT_LT(module->codebook().abs().max().item<float>(), 10);
    module->eval();
    EXPECT_GT(std::get<0>(at::_unique(module(x).indices)).size(0), 8);
  }
}

TEST(DeadCodesTest, AStepReplacesAtMostOneForEveryFourTokens) {
  for (const bool compat : {false, true}) {
    auto module =
        make(Options(kDim).codebook_size(64).threshold_ema_dead_code(2).vqp_compat(compat));
    module->set_codebook(normal({64, kDim}) + 100);
    auto mask = torch::ones({1, 11}, torch::kBool);
    mask.slice(1, 4, 6).fill_(false);
    module(normal({1, 11, kDim}), CallOptions().mask(mask));
    EXPECT_EQ(module->stats().replaced, compat ? 9 : 3);
    module->expire_codes_(normal({1, 30, kDim}, 7));
    EXPECT_EQ(module->stats().replaced, 30);
  }
}

}  // namespace
}  // namespace torchvq::dead_codes_test
