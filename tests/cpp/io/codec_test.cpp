#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/safetensors.h>
#include <torchvq/version.h>

#include <cmath>

#include "expect_throw.h"
#include "io/temp_dir.h"

namespace torchvq::io::codec_test {
namespace {

using torchvq::testing::expect_throw_with;
using torchvq::testing::TempDir;

using State = std::map<std::string, at::Tensor>;

at::Tensor codebook() { return at::arange(6, at::kFloat).view({3, 2}); }

State python_state(const std::string& prefix = "") {
  return {{prefix + "_codebook.initted", at::ones({}, at::kBool)},
          {prefix + "_codebook.cluster_size", at::ones({1, 3})},
          {prefix + "_codebook.embed_avg", codebook().unsqueeze(0)},
          {prefix + "_codebook.embed", codebook().unsqueeze(0)}};
}

class CodecTest : public ::testing::Test {
 protected:
  void expect_refused(const State& state, const std::string& fragment,
                      const std::map<std::string, std::string>& metadata = {}) {
    save_safetensors(dir_ / "c", state, metadata);
    expect_throw_with<c10::ValueError>([&] { load_codec(dir_ / "c"); }, fragment);
  }

  TempDir dir_;
};

TEST_F(CodecTest, IsTheStateOfVectorQuantize) {
  save_codec(dir_ / "c", make_codec(codebook(), at::arange(3), "cosine"));
  const SafetensorsFile file(dir_ / "c");
  ASSERT_EQ(file.entries().size(), 4u);
  EXPECT_TRUE(at::equal(file.tensor("_codebook.initted"), at::ones({}, at::kBool)));
  EXPECT_TRUE(
      at::equal(file.tensor("_codebook.cluster_size"), at::arange(3, at::kFloat).view({1, 3})));
  EXPECT_TRUE(at::equal(file.tensor("_codebook.embed"), codebook().unsqueeze(0)));
  EXPECT_TRUE(at::equal(file.tensor("_codebook.embed_avg"),
                        (codebook() * at::arange(3).unsqueeze(1)).unsqueeze(0)));
  const std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                       {"format_version", "1"},
                                                       {"class", "VectorQuantize"},
                                                       {"codebook_size", "3"},
                                                       {"dim", "2"},
                                                       {"metric", "cosine"},
                                                       {"torchvq_version", TORCHVQ_VERSION}};
  EXPECT_EQ(file.metadata(), metadata);
}

TEST_F(CodecTest, ComesBackAsItWas) {
  save_codec(dir_ / "c", make_codec(codebook(), at::arange(3), "cosine"));
  const auto codec = load_codec(dir_ / "c");
  EXPECT_EQ(codec.metric, "cosine");
  EXPECT_TRUE(at::equal(codec.codebook, codebook()));
  EXPECT_TRUE(at::equal(codec.cluster_size, at::arange(3, at::kFloat)));
  expect_throw_with<c10::ValueError>([&] { load_codec(dir_ / "c", "euclidean"); },
                                     "metric euclidean, but got cosine");
}

TEST_F(CodecTest, LoadsStatesFromPython) {
  save_safetensors(dir_ / "c", python_state());
  EXPECT_EQ(load_codec(dir_ / "c").metric, "euclidean");
  EXPECT_EQ(load_codec(dir_ / "c", "cosine").metric, "cosine");
  auto model = python_state("encoder.vq.");
  model["encoder.vq._codebook.embed"] = model["encoder.vq._codebook.embed"].to(at::kHalf);
  model["encoder.conv.weight"] = at::ones({2, 2});
  save_safetensors(dir_ / "c", model);
  EXPECT_TRUE(at::equal(load_codec(dir_ / "c").codebook, codebook()));
}

TEST_F(CodecTest, RefusesOtherFiles) {
  expect_refused({{"x", codebook()}}, "tensor named _codebook.embed, but it has none");
  auto two = python_state("a.");
  two.merge(python_state("b."));
  expect_refused(two, "residual stack of them, but it holds 2");
  auto projected = python_state();
  projected["project_in.weight"] = codebook();
  expect_refused(projected, "without projections");
  auto heads = python_state();
  heads["_codebook.embed"] = at::ones({2, 3, 2});
  expect_refused(heads, "shape (1, codebook_size, dim), but got (2, 3, 2)");
  auto partial = python_state();
  partial.erase("_codebook.embed_avg");
  expect_refused(partial, "named '_codebook.embed_avg'");
  auto uneven = python_state();
  uneven["_codebook.cluster_size"] = at::ones({1, 4});
  expect_refused(uneven, "of shape (1, 3), but got Float of shape (1, 4)");
  auto broken = python_state();
  broken["_codebook.embed"][0][1][0] = NAN;
  expect_refused(broken, "a finite codebook");
}

TEST_F(CodecTest, RefusesOtherMetadata) {
  expect_refused(python_state(), "format version 1, but got 2", {{"format_version", "2"}});
  expect_refused(python_state(), "or GroupedResidualVQ, but got FSQ", {{"class", "FSQ"}});
  expect_refused(python_state(), "euclidean or cosine, but got dot", {{"metric", "dot"}});
  save_safetensors(dir_ / "c", python_state());
  expect_throw_with<c10::ValueError>([&] { load_codec(dir_ / "c", "dot"); },
                                     "euclidean or cosine, but got dot");
}

CodecStack stack_of(size_t groups, size_t levels) {
  CodecStack stack;
  for (size_t g = 0; g < groups; ++g) {
    stack.groups.emplace_back();
    for (size_t q = 0; q < levels; ++q) {
      const auto shift = static_cast<double>(10 * g + q);
      stack.groups[g].push_back(make_codec(codebook() + shift, at::arange(3), "euclidean"));
    }
  }
  return stack;
}

TEST_F(CodecTest, StacksComeBackUnderTheNamesOfTheirModules) {
  const std::map<std::pair<size_t, size_t>, std::string> names = {
      {{1, 1}, "_codebook.embed"},
      {{1, 12}, "layers.11._codebook.embed"},
      {{2, 1}, "rvqs.1.layers.0._codebook.embed"},
      {{11, 2}, "rvqs.10.layers.1._codebook.embed"}};
  for (const auto& [shape, name] : names) {
    const auto stack = stack_of(shape.first, shape.second);
    save_codec_stack(dir_ / "c", stack);
    const SafetensorsFile file(dir_ / "c");
    EXPECT_TRUE(file.contains(name)) << name;
    EXPECT_TRUE(holds_codec(file));
    const auto loaded = load_codec_stack(dir_ / "c");
    ASSERT_EQ(loaded.groups.size(), shape.first);
    for (size_t g = 0; g < shape.first; ++g) {
      ASSERT_EQ(loaded.groups[g].size(), shape.second);
      for (size_t q = 0; q < shape.second; ++q) {
        EXPECT_TRUE(at::equal(loaded.groups[g][q].codebook, stack.groups[g][q].codebook));
        EXPECT_TRUE(at::equal(loaded.groups[g][q].embed_avg, stack.groups[g][q].embed_avg));
      }
    }
  }
}

TEST_F(CodecTest, RefusesToWriteWhatFloat32CannotHold) {
  const auto large = make_codec(codebook().mul(6e37), at::full({3}, 7), "euclidean");
  expect_throw_with<c10::ValueError>([&] { save_codec(dir_ / "c", large); },
                                     "stands for 7 vectors with magnitudes of up to");
  EXPECT_EQ(dir_.files(), 0u);
}

TEST_F(CodecTest, RefusesStacksThatAreNone) {
  const auto refuses = [&](const CodecStack& stack, const std::string& fragment) {
    expect_throw_with<c10::ValueError>([&] { save_codec_stack(dir_ / "c", stack); }, fragment);
  };
  refuses({}, "at least one codebook");
  auto ragged = stack_of(2, 2);
  ragged.groups[1].pop_back();
  refuses(ragged, "groups of 2 levels each, but got one of 1");
  auto cosine = stack_of(1, 2);
  cosine.groups[0][1].metric = "cosine";
  refuses(cosine, "euclidean for several levels or groups, but got cosine");
  save_codec_stack(dir_ / "c", stack_of(1, 2));
  expect_throw_with<c10::ValueError>([&] { load_codec(dir_ / "c"); }, "but it holds 2");
}

TEST_F(CodecTest, RefusesToWriteWhatCannotBeRead) {
  const auto good = make_codec(codebook(), at::ones({3}), "euclidean");
  const auto refused = [&](auto change) {
    auto codec = good;
    change(codec);
    EXPECT_THROW(save_codec(dir_ / "w", codec), c10::ValueError);
  };
  refused([](auto& codec) { codec.codebook = at::Tensor(); });
  refused([](auto& codec) { codec.codebook = codec.codebook.to(at::kLong); });
  refused([](auto& codec) { codec.codebook = codec.codebook.flatten(); });
  refused([](auto& codec) { codec.cluster_size = at::ones({2}); });
  refused([](auto& codec) { codec.cluster_size = at::full({3}, -1.0); });
  refused([](auto& codec) { codec.cluster_size = at::full({3}, INFINITY); });
  refused([](auto& codec) { codec.embed_avg = codec.embed_avg.t(); });
  refused([](auto& codec) { codec = make_codec(at::ones({0, 2}), at::ones({0}), "euclidean"); });
  // Finite in float64 alone: the file holds float32.
  refused([](auto& codec) { codec.codebook = at::full({3, 2}, 1e300, at::kDouble); });
  refused([](auto& codec) { codec.embed_avg = at::full({3, 2}, 1e300, at::kDouble); });
  refused([](auto& codec) { codec.cluster_size = at::full({3}, 1e300, at::kDouble); });
  EXPECT_THROW(make_codec(codebook(), at::ones({2}), "euclidean"), c10::ValueError);
  EXPECT_EQ(make_codec(codebook().to(at::kLong), at::ones({3}), "cosine").codebook.dtype(),
            at::kFloat);
}

}  // namespace
}  // namespace torchvq::io::codec_test
