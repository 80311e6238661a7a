#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/safetensors.h>
#include <torchvq/version.h>

#include <cmath>

#include "expect_throw.h"
#include "io/temp_dir.h"

namespace torchvq::io {
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
  expect_refused(two, "expected one codebook, but it holds 2");
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
  expect_refused(python_state(), "class VectorQuantize, but got FSQ", {{"class", "FSQ"}});
  expect_refused(python_state(), "euclidean or cosine, but got dot", {{"metric", "dot"}});
  save_safetensors(dir_ / "c", python_state());
  expect_throw_with<c10::ValueError>([&] { load_codec(dir_ / "c", "dot"); },
                                     "euclidean or cosine, but got dot");
}

}  // namespace
}  // namespace torchvq::io
