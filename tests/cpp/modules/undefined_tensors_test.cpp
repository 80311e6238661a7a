// Undefined tensors, at::Tensor(), are refused by name, by modules, operators and functions alike.
#include <functional>
#include <string>
#include <vector>

#include <torchvq/distributed/replicas.h>
#include <torchvq/functional/average_gradients.h>
#include <torchvq/functional/binary_codes.h>
#include <torchvq/functional/codebook.h>
#include <torchvq/functional/decode.h>
#include <torchvq/functional/latent_codes.h>
#include <torchvq/functional/layout.h>
#include <torchvq/functional/losses.h>
#include <torchvq/functional/quantize.h>
#include <torchvq/functional/wide_codes.h>
#include <torchvq/ops/commitment_loss.h>
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/prepare_codes.h>
#include <torchvq/ops/residual_commit.h>
#include <torchvq/ops/residual_decode.h>
#include <torchvq/ops/residual_encode.h>
#include <torchvq/ops/scalar_quantize.h>
#include <torchvq/ops/straight_through.h>
#include <torchvq/torchvq.h>

#include "expect_throw.h"

namespace torchvq::undefined_tensors_test {
namespace {

namespace F = functional;
using testing::expect_throw_with;

const torch::Tensor kNone;

/// Whether `call` is refused as one that gives `owner` nothing for `argument`.
void refuses(const std::function<void()>& call, const std::string& owner,
             const std::string& argument) {
  SCOPED_TRACE(owner + ", " + argument);
  expect_throw_with<c10::TypeError>(
      call, owner + ": expected " + argument + " to be a tensor, but got an undefined one");
}

/// The input, the mask and decoding of a module.
template <typename Call, typename Module, typename Decode>
void check_module(Module module, const torch::Tensor& x, const std::string& owner,
                  const Decode& decode) {
  refuses([&] { module(kNone); }, owner, "x");
  refuses([&] { decode(module); }, owner, "indices");
  for (const bool training : {true, false}) {
    module->train(training);
    // A level of a group names itself.
    const auto inner = owner.starts_with("Grouped") ? owner.substr(7) : owner;
    refuses([&] { module(x, Call().mask(kNone)); }, inner, "mask");
  }
}

const auto kOutput = [](auto& module) { module->get_output_from_indices(kNone); };
const auto kCodesOf = [](auto& module) { module->get_codes_from_indices(kNone); };
const auto kCodes = [](auto& module) { module->indices_to_codes(kNone); };

TEST(UndefinedTensorsTest, ModulesNameThem) {
  const auto x = at::randn({2, 6, 4});
  const auto lfq = LFQOptions().commitment_loss_weight(0.25);
  check_module<VectorQuantizeForwardOptions>(
      VectorQuantize(VectorQuantizeOptions(4).codebook_size(8)), x, "VectorQuantize", kOutput);
  const auto stack = ResidualVQOptions(4).num_quantizers(2).codebook_size(8);
  check_module<ResidualVQForwardOptions>(ResidualVQ(stack), x, "ResidualVQ", kCodesOf);
  check_module<ResidualVQForwardOptions>(
      GroupedResidualVQ(GroupedResidualVQOptions(4).groups(2).rvq(stack)), x, "GroupedResidualVQ",
      kOutput);
  check_module<ResidualLFQForwardOptions>(ResidualLFQ(ResidualLFQOptions(4, 2, 16).lfq(lfq)), x,
                                          "ResidualLFQ", kOutput);
  check_module<ResidualFSQForwardOptions>(ResidualFSQ(ResidualFSQOptions({5, 5, 5, 5}, 2)), x,
                                          "ResidualFSQ", kCodesOf);
  check_module<ResidualFSQForwardOptions>(
      GroupedResidualFSQ(GroupedResidualFSQOptions(4, ResidualFSQOptions({5, 5}, 2)).groups(2)), x,
      "GroupedResidualFSQ", kCodesOf);
  check_module<ResidualSimVQForwardOptions>(ResidualSimVQ(ResidualSimVQOptions(4, 2, 8)), x,
                                            "ResidualSimVQ", kOutput);
}

TEST(UndefinedTensorsTest, PlainQuantizersNameThem) {
  const auto x = at::randn({2, 6, 4});
  LFQ lfq(LFQOptions().dim(4).commitment_loss_weight(0.25));
  refuses([&] { lfq(kNone); }, "LFQ", "x");
  refuses([&] { lfq(x, 1.0, kNone); }, "LFQ", "mask");
  refuses([&] { kCodes(lfq); }, "LFQ", "indices");
  refuses([&] { lfq->bits_to_codes(kNone); }, "LFQ", "bits");
  FSQ fsq(FSQOptions({5, 5, 5, 5}));
  refuses([&] { fsq(kNone); }, "FSQ", "z");
  refuses([&] { kCodes(fsq); }, "FSQ", "indices");
  FSP fsp(FSPOptions({5, 5, 5, 5}));
  refuses([&] { fsp(kNone); }, "FSP", "z");
  SimVQ sim(SimVQOptions(4, 8));
  refuses([&] { sim(x, kNone); }, "SimVQ", "mask");
  refuses([&] { kCodes(sim); }, "SimVQ", "indices");
  LatentQuantize latent(LatentQuantizeOptions({5, 5, 5, 5}, 4));
  refuses([&] { latent(kNone); }, "LatentQuantize", "z");
  refuses([&] { kCodes(latent); }, "LatentQuantize", "indices");
  BinaryMapper bits{BinaryMapperOptions(4)};
  refuses([&] { bits(kNone); }, "BinaryMapper", "logits");
  refuses([&] { bits->log_prob(x, std::nullopt, kNone); }, "binary_log_prob", "one_hot");
  RandomProjectionQuantizer random(RandomProjectionQuantizerOptions(4, 8, 4));
  refuses([&] { random(x, RandomProjectionQuantizerForwardOptions().indices(kNone)); },
          "RandomProjectionQuantizer", "indices");
}

TEST(UndefinedTensorsTest, ArgumentsOfLearningAreNamed) {
  const auto x = at::randn({2, 6, 4});
  VectorQuantize vq(VectorQuantizeOptions(4).codebook_size(8));
  const auto call = [] { return VectorQuantizeForwardOptions(); };
  refuses([&] { vq(x, call().indices(kNone)); }, "VectorQuantize", "indices");
  refuses([&] { vq(x, call().lens(kNone)); }, "VectorQuantize", "lens");
  refuses([&] { vq(x, call().ema_update_weight(kNone)); }, "VectorQuantize", "ema_update_weight");
  refuses([&] { vq->set_codebook(kNone); }, "VectorQuantize", "codebook");
  refuses([&] { vq->update_ema_indices(x, kNone); }, "VectorQuantize", "indices");
  ResidualVQ rvq(ResidualVQOptions(4).num_quantizers(2).codebook_size(8));
  refuses([&] { rvq(x, ResidualVQForwardOptions().indices(kNone)); }, "ResidualVQ", "indices");
  HierarchicalVQ hvq(HierarchicalVQOptions(4, 8, {1, 6}));
  const std::vector<torch::Tensor> none{kNone, kNone};
  refuses([&] { hvq(x.mT(), HierarchicalVQForwardOptions().indices(none)); }, "HierarchicalVQ",
          "indices");
  refuses([&] { hvq->get_output_from_indices(none); }, "HierarchicalVQ", "indices");
}

TEST(UndefinedTensorsTest, OperatorsNameThemWithAndWithoutAGradient) {
  for (const bool gradient : {false, true}) {
    const auto x = at::randn({1, 6, 4}).requires_grad_(gradient);
    const auto codebook = at::randn({1, 8, 4}).requires_grad_(gradient);
    const auto indices = at::zeros({1, 6}, at::kLong);
    refuses([&] { ops::lookup_codes(kNone, indices); }, "lookup_codes", "codebook");
    refuses([&] { ops::lookup_codes(codebook, kNone); }, "lookup_codes", "indices");
    refuses([&] { ops::nearest_code(kNone, kNone); }, "nearest_code", "x");
    refuses([&] { ops::nearest_code(x, kNone); }, "nearest_code", "codebook");
    refuses([&] { ops::commitment_loss(x, kNone); }, "commitment_loss", "codes");
    refuses([&] { ops::commitment_loss(x, x, kNone); }, "commitment_loss", "mask");
    refuses([&] { ops::straight_through(x, kNone); }, "straight_through", "codes");
    refuses([&] { ops::residual_encode(kNone, {codebook}); }, "residual_encode", "x");
    refuses([&] { ops::scalar_quantize(kNone, {5, 5, 5, 5}); }, "scalar_quantize", "x");
    refuses([&] { torchvq::kmeans(kNone, 4); }, "kmeans", "x");
  }
}

TEST(UndefinedTensorsTest, ListsNameTheirs) {
  const auto x = at::randn({1, 6, 4}), codebook = at::randn({1, 8, 4});
  const auto indices = at::zeros({1, 6, 2}, at::kLong);
  refuses([&] { ops::residual_encode(x, {codebook, kNone}); }, "residual_encode", "codebooks");
  for (const auto& prepared : {std::vector<torch::Tensor>{kNone},
                               std::vector<torch::Tensor>{ops::prepare_codes(codebook), kNone}}) {
    const auto options = ops::ResidualEncodeOptions().prepared(prepared);
    const std::vector<torch::Tensor> codebooks(prepared.size(), codebook);
    refuses([&] { ops::residual_encode(x, codebooks, options); }, "residual_encode", "prepared");
  }
  refuses([&] { ops::residual_decode(indices, {codebook, kNone}); }, "residual_decode",
          "codebooks");
  refuses([&] { ops::residual_commit(x, {codebook, kNone}, indices, std::nullopt, "none", 1); },
          "residual_commit", "codebooks");
  refuses([&] { F::decode_residual(indices, {codebook, kNone}, 1, false); }, "residual_decode",
          "codebooks");
  const auto values = at::randn({3});
  refuses([&] { F::latent_quantize(x, {values, kNone, values, values}); }, "latent_quantize",
          "values");
  refuses([&] { F::average_gradients({kNone}, x, std::nullopt, {}); }, "average_gradients",
          "gradients");
  refuses([&] { distributed::state_hash({x, kNone}); }, "state_hash", "state");
  refuses([&] { distributed::replica_hashes({kNone}, {}); }, "replica_hashes", "state");
  refuses([&] { distributed::handshake_({kNone}, {}); }, "handshake_", "state");
  refuses([&] { distributed::broadcast_state_({kNone}, {}); }, "broadcast_state_", "state");
}

TEST(UndefinedTensorsTest, FunctionsNameThem) {
  const auto tokens = at::randn({2, 6, 4});
  refuses([] { F::pack_tokens(kNone); }, "pack_tokens", "x");
  refuses([] { F::split_heads(kNone, 2, true); }, "split_heads", "tokens");
  refuses([] { F::split_mask(kNone, 2, true); }, "split_mask", "mask");
  refuses([] { F::split_indices(kNone, 1, true); }, "split_indices", "indices");
  refuses([&] { F::fill_masked(tokens, kNone); }, "fill_masked", "mask");
  refuses([&] { F::fill_padding(tokens, kNone); }, "fill_padding", "mask");
  refuses([] { F::lens_to_mask(kNone, 3); }, "lens_to_mask", "lens");
  refuses([&] { F::quantize(kNone, tokens, kNone); }, "quantize", "x");
  refuses([&] { F::candidate_commitment_loss(kNone, tokens); }, "candidate_commitment_loss",
          "inputs");
  refuses([&] { F::candidate_commitment_loss(tokens, kNone); }, "candidate_commitment_loss",
          "codes");
  refuses([&] { F::candidate_commitment_loss(tokens, tokens, kNone); }, "candidate_commitment_loss",
          "mask");
  refuses([&] { F::weighted_loss({tokens, kNone}, {1.0, 2.0}, true); }, "weighted_loss", "terms");
  refuses([&] { F::affine_codes(kNone, tokens, tokens, tokens, tokens); }, "affine_codes", "embed");
  refuses([&] { F::affine_codes(tokens, tokens, kNone, tokens, tokens); }, "affine_codes",
          "batch_variance");
  refuses([&] { F::wide_codes(kNone, tokens, tokens, 1e-5, "euclidean"); }, "wide_codes", "embed");
  refuses([&] { F::wide_codes(tokens, kNone, tokens, 1e-5, "euclidean"); }, "wide_codes",
          "cluster_size");
  refuses([&] { F::zero_absent(kNone, tokens); }, "zero_absent", "output");
  refuses([&] { F::zero_absent(tokens, kNone); }, "zero_absent", "indices");
  refuses([&] { F::decode_indices(tokens, kNone); }, "decode_indices", "indices");
  refuses([&] { F::decode_residual(kNone, {tokens}); }, "decode_residual", "indices");
  refuses([&] { F::merge_statistics(tokens, tokens, tokens, tokens, tokens, kNone); },
          "merge_statistics", "exponents_b");
}

}  // namespace
}  // namespace torchvq::undefined_tensors_test
