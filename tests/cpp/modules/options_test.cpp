// Options by name: text to options and back, checks of a class, errors.
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torchvq/modules/lfq.h>
#include <torchvq/modules/residual_vq.h>
#include <torchvq/options/binary_mapper.h>
#include <torchvq/options/by_name.h>
#include <torchvq/options/residual_fsq.h>
#include <torchvq/options/vector_quantize.h>

#include "expect_throw.h"

namespace torchvq::options_test {
namespace {

using testing::expect_throw_with;

TEST(OptionsTest, TextSetsOptionsOfEveryKind) {
  VectorQuantizeOptions options(1);
  const std::vector<std::pair<std::string, std::string>> texts{
      {"dim", "8"},           {"decay", "0.25"},
      {"eps", "1e-3"},        {"kmeans_init", "True"},
      {"heads", "2"},         {"ema_update", "False"},
      {"codebook_dim", "4"},  {"commitment_weight", "inf"},
      {"reduction", "float"}, {"process_group", "half"}};
  for (const auto& [name, text] : texts) EXPECT_TRUE(set_option(options, name, text)) << name;
  EXPECT_EQ(options.dim(), 8);
  EXPECT_EQ(options.decay(), 0.25);
  EXPECT_EQ(options.eps(), 1e-3);
  EXPECT_TRUE(options.kmeans_init());
  EXPECT_EQ(options.ema_update(), std::optional(false));
  EXPECT_EQ(options.codebook_dim(), std::optional<int64_t>(4));
  EXPECT_EQ(options.commitment_weight(), std::numeric_limits<double>::infinity());
  EXPECT_EQ(options.reduction(), "float");
  EXPECT_EQ(options.process_group(), std::optional<std::string>("half"));
  EXPECT_TRUE(set_option(options, "codebook_dim", "None"));
  EXPECT_EQ(options.codebook_dim(), std::nullopt);
  EXPECT_FALSE(set_option(options, "speed", "1"));
}

TEST(OptionsTest, AStackPassesNamesOnToItsLevels) {
  ResidualVQOptions stack(8);
  EXPECT_TRUE(set_option(stack, "decay", "0.5"));
  EXPECT_EQ(stack.vq().decay(), 0.5);
  EXPECT_TRUE(set_option(stack, "heads", "2"));
  EXPECT_EQ(stack.heads(), 2);
  EXPECT_EQ(stack.vq().heads(), 1);
  EXPECT_TRUE(set_option(stack, "codebook_size", "[4, 16]"));
  EXPECT_EQ(stack.codebook_size().sizes, (std::vector<int64_t>{4, 16}));
  EXPECT_TRUE(stack.codebook_size().each);
  EXPECT_TRUE(set_option(stack, "mlp_kwargs.depth", "2"));
  EXPECT_EQ(stack.mlp_kwargs().depth(), 2);
  GroupedResidualFSQOptions groups(8, ResidualFSQOptions({}, 1));
  EXPECT_TRUE(set_option(groups, "levels", "(8, 5,)"));
  EXPECT_TRUE(set_option(groups, "noise_dropout", "0.5"));
  EXPECT_TRUE(set_option(groups, "soft_clamp_input_value", "2"));
  EXPECT_FALSE(set_option(groups, "preserve_symmetry", "False"));
  EXPECT_EQ(groups.rfsq().levels(), (std::vector<int64_t>{8, 5}));
  EXPECT_EQ(groups.rfsq().fsq().noise_dropout(), 0.5);
  EXPECT_EQ(groups.rfsq().soft_clamp_input_value(), std::optional(std::vector<double>{2}));
}

TEST(OptionsTest, ListsSayDefaultsAndWhatMustBeGiven) {
  const auto lines = list_options("LatentQuantize");
  EXPECT_EQ(lines,
            (std::vector<std::string>{
                "levels", "dim", "commitment_loss_weight=0.1", "quantization_loss_weight=0.1",
                "num_codebooks=1", "keep_num_codebooks_dim=None", "optimize_values=True",
                "in_place_codebook_optimizer=None", "channel_first=True", "vqp_compat=None"}));
}

TEST(OptionsTest, EnvironmentIsTheDefaultOfTheSwitchAndTheOptionWins) {
  const auto say = [](const char* value) { ASSERT_EQ(setenv("TORCHVQ_COMPAT", value, 1), 0); };
  say("1");
  EXPECT_TRUE(VectorQuantizeOptions(8).vqp_compat());
  EXPECT_TRUE(FSQOptions({8, 5}).vqp_compat());
  EXPECT_TRUE(ResidualVQOptions(8).vq().vqp_compat());
  EXPECT_FALSE(LFQOptions().vqp_compat(false).vqp_compat());
  VectorQuantizeOptions options(8);
  options.vqp_compat(false);
  set_option(options, "vqp_compat", "None");
  EXPECT_TRUE(options.vqp_compat());
  say("0");
  EXPECT_FALSE(VectorQuantizeOptions(8).vqp_compat());
  say("on");
  expect_throw_with<c10::ValueError>([] { (void)vqp_compat_by_default(); },
                                     "expected the environment variable to be 0 or 1, but got on");
  unsetenv("TORCHVQ_COMPAT");
  EXPECT_FALSE(BinaryMapperOptions().vqp_compat());
}

TEST(OptionsTest, WrongTextIsNamed) {
  VectorQuantizeOptions options(8);
  for (const auto* text : {"", " 3", "3 ", "0x3", "3.0", "None", "9223372036854775808"}) {
    expect_throw_with<c10::TypeError>(
        [&] { set_option(options, "heads", text); },
        std::string("VectorQuantize: expected heads to be an integer of 64 bits, but got ") + text);
  }
  expect_throw_with<c10::TypeError>([&] { set_option(options, "decay", "fast"); },
                                    "expected decay to be a number, but got fast");
  EXPECT_EQ(options.heads(), 1);
  ResidualFSQOptions stack({8}, 1);
  for (const auto* text : {"8", "[8", "[8, x]", "[,]", "[8,,5]", "[8.0]"}) {
    expect_throw_with<c10::TypeError>(
        [&] { set_option(stack, "levels", text); },
        std::string("ResidualFSQ: expected levels to be a list of integers, but got ") + text);
  }
}

TEST(OptionsTest, ValuesInMessagesAreAsPythonWritesThem) {
  const auto refuse = [](const VectorQuantizeOptions& wrong, const std::string& fragment) {
    expect_throw_with<c10::ValueError>([&] { wrong.validate(); }, fragment);
  };
  refuse(VectorQuantizeOptions(8).decay(1.0000001), "but got 1.0000001");
  refuse(VectorQuantizeOptions(8).decay(3), "but got 3.0");
  refuse(VectorQuantizeOptions(8).decay(1e16), "but got 1e+16");
  refuse(VectorQuantizeOptions(8).decay(-1e-5), "but got -1e-05");
  refuse(VectorQuantizeOptions(8).decay(-0.0001), "but got -0.0001");
  expect_throw_with<c10::ValueError>([] { ResidualVQOptions(8).validate(); },
                                     "num_quantizers to be at least 1, but got None");
  expect_throw_with<c10::ValueError>(
      [] { ResidualVQOptions(8).num_quantizers(std::numeric_limits<int64_t>::max()).validate(); },
      "num_quantizers to be at most 65536, but got");
}

TEST(OptionsTest, WhatIsInfiniteOrEmptyIsRefused) {
  const double infinite = std::numeric_limits<double>::infinity();
  const auto lfq = LFQOptions().dim(4);
  expect_throw_with<c10::ValueError>([&] { LFQ(LFQOptions(lfq).codebook_scale(infinite)); },
                                     "LFQ: expected codebook_scale to be above 0 and finite");
  expect_throw_with<c10::ValueError>([&] { LFQ(LFQOptions(lfq).entropy_loss_weight(infinite)); },
                                     "entropy_loss_weight to be 0 or more and finite");
  auto stack = ResidualVQOptions(8).num_quantizers(2);
  stack.mlp_kwargs().dim_hidden(0);
  expect_throw_with<c10::ValueError>([&] { ResidualVQ module(stack); },
                                     "mlp_kwargs.dim_hidden to be at least 1, but got 0");
}

TEST(OptionsTest, ClassesAreCheckedByName) {
  EXPECT_EQ(check_options("VectorQuantize", {"dim"}, {"1"}), (std::vector<int64_t>{0, 1, 0}));
  EXPECT_EQ(check_options("ResidualVQ", {"dim", "codebook_size"}, {"8", "[4, 16]"}),
            (std::vector<int64_t>{4, 16}));
  EXPECT_TRUE(check_options("BinaryMapper", {}, {}).empty());
  expect_throw_with<c10::ValueError>([] { check_options("Quantizer", {}, {}); }, "got Quantizer");
  expect_throw_with<c10::ValueError>([] { check_options("FSQ", {"dim"}, {}); }, "but got 0");
  expect_throw_with<c10::ValueError>(
      [] { check_options("GroupedResidualVQ", {"dim", "num_quantizers"}, {"8", "0"}); },
      "ResidualVQ: expected num_quantizers to be at least 1, but got 0");
  expect_throw_with<c10::ValueError>(
      [] { check_options("GroupedResidualVQ", {"dim", "num_quantizers"}, {"0", "2"}); },
      "GroupedResidualVQ: expected dim to be a multiple of 1 groups, but got 0");
  expect_throw_with<c10::TypeError>([] { check_options("FSQ", {}, {}); },
                                    "FSQ: expected levels to be given, but got none");
  expect_throw_with<c10::TypeError>([] { check_options("LFQ", {"speed"}, {"1"}); }, "speed");
}

}  // namespace
}  // namespace torchvq::options_test
