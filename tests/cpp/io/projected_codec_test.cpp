// Codecs of codebooks with linear maps: their arithmetic, and damaged files of them.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cdist.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torchvq/io/codec.h>
#include <torchvq/io/projected_codec.h>

#include <limits>

#include "expect_throw.h"
#include "io/temp_dir.h"

namespace torchvq::io::projected_codec_test {
namespace {

using fit::ProjectedCodec;
using fit::Projection;
using torchvq::testing::expect_throw_with;
using torchvq::testing::TempDir;
using Metadata = std::map<std::string, std::string>;

Projection map(int64_t out, int64_t in) { return {at::randn({out, in}), at::randn({out})}; }

// Two stacks of 6 features: maps around each level of the first, and around the whole second one.
ProjectedCodec make() {
  ProjectedCodec codec;
  codec.dim = 6;
  codec.stacks.resize(2);
  for (int q = 0; q < 2; ++q)
    codec.stacks[0].levels.push_back({map(2, 6), at::randn({5, 2}), map(6, 2)});
  codec.stacks[1].in = {at::randn({3, 6}), {}};
  codec.stacks[1].levels.push_back({{}, at::randn({7, 3}), {}});
  codec.stacks[1].out = map(6, 3);
  return codec;
}

at::Tensor apply(const Projection& map, const at::Tensor& x) {
  const auto y = x.matmul(map.weight.to(at::kDouble).t());
  return map.bias.defined() ? y + map.bias.to(at::kDouble) : y;
}

TEST(ProjectedCodecTest, TokensAndVectorsAreThoseOfPlainArithmetic) {
  const auto codec = make();
  const auto x = at::randn({40, 6});
  const auto codes = fit::encode_projected(x, codec);
  auto residual = x.to(at::kDouble), sum = at::zeros({40, 6}, at::kDouble);
  for (int q = 0; q < 2; ++q) {
    const auto& level = codec.stacks[0].levels[q];
    const auto book = level.codebook.to(at::kDouble);
    const auto nearest = at::cdist(apply(level.in, residual), book).argmin(1);
    EXPECT_TRUE(at::equal(codes.select(1, q), nearest));
    const auto said = apply(level.out, book.index_select(0, nearest));
    residual = residual - said;
    sum = sum + said;
  }
  const auto& second = codec.stacks[1];
  const auto book = second.levels[0].codebook.to(at::kDouble);
  const auto nearest = at::cdist(apply(second.in, x.to(at::kDouble)), book).argmin(1);
  EXPECT_TRUE(at::equal(codes.select(1, 2), nearest));
  sum = sum + apply(second.out, book.index_select(0, nearest));
  EXPECT_TRUE(fit::decode_projected(codes, codec).allclose(sum.to(at::kFloat), 1e-6, 1e-6));
}

TEST(ProjectedCodecTest, ALevelLeftOutAddsNothing) {
  const auto codec = make();
  const auto none = at::tensor({-1, -1, -1}, at::kLong).unsqueeze(0);
  EXPECT_TRUE(at::equal(fit::decode_projected(none, codec), at::zeros({1, 6})));
  const auto first = at::tensor({4, -1, -1}, at::kLong).unsqueeze(0);
  const auto& level = codec.stacks[0].levels[0];
  const auto said = apply(level.out, level.codebook.to(at::kDouble).narrow(0, 4, 1));
  EXPECT_TRUE(fit::decode_projected(first, codec).allclose(said.to(at::kFloat)));
}

TEST(ProjectedCodecTest, OtherShapesAreRefused) {
  const auto codec = make();
  expect_throw_with<c10::ValueError>([&] { fit::encode_projected(at::zeros({2, 5}), codec); },
                                     "shape (N, 6)");
  expect_throw_with<c10::ValueError>(
      [&] { fit::decode_projected(at::zeros({2, 2}, at::kLong), codec); }, "shape (N, 3)");
  expect_throw_with<c10::IndexError>(
      [&] { fit::decode_projected(at::ones({2, 3}, at::kLong) * 5, codec); }, "");
}

TEST(ProjectedCodecTest, AFileKeepsIt) {
  const TempDir dir;
  const auto codec = make();
  save_projected_codec(dir / "c", codec);
  EXPECT_TRUE(holds_projected_codec(SafetensorsFile(dir / "c")));
  const auto loaded = load_projected_codec(dir / "c");
  const auto x = at::randn({9, 6});
  const auto codes = fit::encode_projected(x, codec);
  EXPECT_TRUE(at::equal(codes, fit::encode_projected(x, loaded)));
  EXPECT_TRUE(at::equal(fit::decode_projected(codes, codec), fit::decode_projected(codes, loaded)));
}

TEST(ProjectedCodecTest, ACodecWithoutMapsIsOneStack) {
  const TempDir dir;
  const auto counts = at::ones({4});
  const auto level = make_codec(at::randn({4, 3}), counts, "euclidean");
  save_codec_stack(dir / "c", {{{level, level}}});
  const auto loaded = load_projected_codec(dir / "c");
  EXPECT_EQ(loaded.columns(), 2);
  EXPECT_EQ(loaded.dim, 3);
  EXPECT_TRUE(at::equal(loaded.codebook(1), level.codebook));
}

TEST(ProjectedCodecTest, DamagedFilesAreRefused) {
  const TempDir dir;
  const std::string path = dir / "c";
  const std::string book = "stacks.0.layers.0._codebook.embed";
  const auto codes = at::ones({1, 4, 3});
  const auto refused = [&](const std::map<std::string, at::Tensor>& tensors, Metadata said,
                           const std::string& fragment) {
    said.insert({{"format_version", "1"},
                 {"class", "ProjectedCodec"},
                 {"dim", "3"},
                 {"metric", "euclidean"}});
    save_safetensors(path, tensors, said);
    expect_throw_with<c10::ValueError>([&] { load_projected_codec(path); }, fragment);
  };
  refused({{book, codes}}, {{"format_version", "2"}}, "format version 1, but got 2");
  refused({{book, codes}}, {{"dim", "-3"}}, "expected dim to be");
  refused({{book, codes}}, {{"metric", "dot"}}, "expected metric to be");
  refused({{book, codes}}, {{"dim", "4"}}, "to be floating point of shape (1, -1, 4)");
  refused({{"a", codes}}, {}, "at least one codebook");
  refused({{book, codes}, {"a", codes}}, {}, "but 1 are no part of one");
  refused({{book, codes * std::numeric_limits<float>::quiet_NaN()}}, {}, "holds NaN or infinity");
  refused({{book, codes}, {"stacks.0.layers.0.project_in.weight", at::ones({3, 2})}}, {},
          "project_in.weight to be floating point of shape (-1, 3)");
  refused({{book, codes},
           {"stacks.0.layers.0.project_in.weight", at::ones({3, 3})},
           {"stacks.0.project_in.weight", at::ones({3, 3})},
           {"stacks.0.project_out.bias", codes}},
          {}, "no part of one");
  refused({{book, at::ones({1, 4, 2})}, {"stacks.0.layers.0.project_in.weight", at::ones({2, 3})}},
          {}, "project_out.weight to lead back to 3 features");
}

ProjectedCodec make_small() {
  ProjectedCodec codec;
  codec.dim = 3;
  codec.stacks = {
      {{}, {{{at::ones({2, 3}), at::ones({2})}, at::ones({4, 2}), {at::ones({3, 2}), {}}}}, {}}};
  return codec;
}

TEST(ProjectedCodecTest, RefusesPartsThatDoNotFit) {
  const TempDir dir;
  const auto good = make_small();
  save_projected_codec(dir / "good", good);
  EXPECT_EQ(load_projected_codec(dir / "good").columns(), 1);
  const auto refused = [&](auto change) {
    auto codec = good;
    change(codec);
    EXPECT_THROW(save_projected_codec(dir / "c", codec), c10::ValueError);
    EXPECT_THROW(fit::encode_projected(at::ones({5, 3}), codec), c10::ValueError);
    EXPECT_THROW(fit::decode_projected(at::zeros({5, 1}, at::kLong), codec), c10::ValueError);
  };
  refused([](auto& codec) { codec.metric = "dot"; });
  refused([](auto& codec) { codec.stacks.clear(); });
  refused([](auto& codec) { codec.stacks[0].levels.clear(); });
  refused([](auto& codec) { codec.stacks[0].in.bias = at::ones({3}); });
  refused([](auto& codec) { codec.stacks[0].levels[0].codebook = at::Tensor(); });
  refused([](auto& codec) { codec.stacks[0].levels[0].codebook = at::ones({4, 3}); });
  refused([](auto& codec) { codec.stacks[0].levels[0].in.bias = at::ones({3}); });
  refused([](auto& codec) { codec.stacks[0].levels[0].out.weight = at::ones({2, 2}); });
  refused([](auto& codec) { codec.stacks[0].out.weight = at::ones({4, 3}); });
  refused([](auto& codec) {
    auto& level = codec.stacks[0].levels[0];
    level = {{at::ones({0, 3}), {}}, at::ones({4, 0}), {at::ones({3, 0}), {}}};
  });
}

TEST(ProjectedCodecTest, RefusesToWriteWhatFloat32CannotHold) {
  const TempDir dir;
  const auto refused = [&](auto change) {
    auto codec = make_small();
    change(codec.stacks[0].levels[0]);
    expect_throw_with<c10::ValueError>([&] { save_projected_codec(dir / "c", codec); },
                                       "to be finite in float32");
  };
  refused([](auto& level) { level.codebook.fill_(std::numeric_limits<float>::quiet_NaN()); });
  refused([](auto& level) { level.codebook = level.codebook.to(at::kDouble).mul(1e300); });
  refused([](auto& level) { level.in.weight = level.in.weight.to(at::kDouble).mul(1e300); });
  refused([](auto& level) { level.in.bias = level.in.bias.to(at::kDouble).mul(-1e300); });
  EXPECT_EQ(dir.files(), 0u);
}

}  // namespace
}  // namespace torchvq::io::projected_codec_test
