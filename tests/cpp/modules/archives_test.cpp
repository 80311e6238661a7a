// torch::load() takes an archive of the module's own sizes and dtypes, or changes nothing.
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <torchvq/torchvq.h>

#include "expect_throw.h"

namespace torchvq::archives_test {
namespace {

using testing::expect_throw_with;

constexpr int64_t kDim = 6;

std::vector<torch::Tensor> tensors_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> all;
  for (const auto& one : module.parameters()) all.push_back(one.detach().clone());
  for (const auto& one : module.buffers()) all.push_back(one.clone());
  return all;
}

void expect_equal(const std::vector<torch::Tensor>& found,
                  const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i;
}

template <typename Module>
void copy_by_archive(const Module& from, Module& to) {
  std::stringstream file;
  torch::save(from, file);
  torch::load(to, file);
}

/// Another dtype is refused, in both directions, and by a module around it; the own one loads.
template <typename Module, typename Options>
void expect_own_dtype(const char* owner, const Options& options) {
  SCOPED_TRACE(owner);
  Module narrow(options), wide(options), other(options);
  wide->to(at::kDouble);
  const auto before = tensors_of(*narrow), wide_before = tensors_of(*wide);
  const std::string refusal = std::string(owner) + ": expected ";
  expect_throw_with<c10::ValueError>([&] { copy_by_archive(wide, narrow); }, refusal);
  expect_throw_with<c10::ValueError>([&] { copy_by_archive(narrow, wide); }, "as in the module");
  expect_equal(tensors_of(*narrow), before);
  expect_equal(tensors_of(*wide), wide_before);
  torch::nn::Sequential inside(narrow), from(wide);
  expect_throw_with<c10::ValueError>([&] { copy_by_archive(from, inside); }, refusal);
  expect_equal(tensors_of(*narrow), before);
  copy_by_archive(other, narrow);
  expect_equal(tensors_of(*narrow), tensors_of(*other));
  Module far(options);
  far->to(at::kDouble);
  copy_by_archive(wide, far);
  expect_equal(tensors_of(*far), wide_before);
}

/// An archive that lacks a tensor or a child is refused before anything is loaded.
template <typename Module>
void expect_whole(const Module& lacking, Module& module, const std::string& fragment) {
  const auto before = tensors_of(*module);
  auto from = lacking;
  expect_throw_with<c10::ValueError>([&] { copy_by_archive(from, module); }, fragment);
  expect_equal(tensors_of(*module), before);
}

TEST(ArchivesTest, ASequenceLoadsAllOfItsModulesOrNone) {
  const auto sequence = [](int64_t codes) {
    return Sequential(torch::nn::Linear(4, kDim),
                      VectorQuantize(VectorQuantizeOptions(kDim).codebook_size(codes)));
  };
  auto other = sequence(16), like = sequence(8), model = sequence(8);
  expect_whole(other, model, "Sequential: expected fns.1._codebook.");
  copy_by_archive(like, model);
  expect_equal(tensors_of(*model), tensors_of(*like));
}

TEST(ArchivesTest, AnArchiveThatLacksSomethingIsRefused) {
  const auto vq = VectorQuantizeOptions(kDim).codebook_size(8);
  const VectorQuantize plain(vq);
  VectorQuantize affine(VectorQuantizeOptions(vq).affine_param(true));
  expect_whole(plain, affine, "expected the archive to have _codebook.batch_mean");
  const auto rvq = ResidualVQOptions(kDim).num_quantizers(2).codebook_size(8);
  const ResidualVQ two(rvq);
  ResidualVQ three(ResidualVQOptions(rvq).num_quantizers(3));
  expect_whole(two, three, "expected the archive to have layers.2");
}

TEST(ArchivesTest, AnotherDtypeIsRefused) {
  const auto rvq = ResidualVQOptions(kDim).num_quantizers(2).codebook_size(8);
  const ResidualFSQOptions fsq({3, 4}, 2);
  const ResidualLFQOptions lfq(kDim, 2, 8);
  expect_own_dtype<VectorQuantize>("VectorQuantize", VectorQuantizeOptions(kDim).codebook_size(8));
  expect_own_dtype<ResidualVQ>("ResidualVQ", rvq);
  expect_own_dtype<GroupedResidualVQ>("GroupedResidualVQ",
                                      GroupedResidualVQOptions(2 * kDim).groups(2).rvq(rvq));
  expect_own_dtype<HierarchicalVQ>("HierarchicalVQ",
                                   HierarchicalVQOptions(kDim, 8, std::vector<int64_t>{1, 2}));
  expect_own_dtype<SimVQ>("SimVQ", SimVQOptions(kDim, 8));
  expect_own_dtype<ResidualSimVQ>("ResidualSimVQ", ResidualSimVQOptions(kDim, 2, 8));
  expect_own_dtype<RandomProjectionQuantizer>("RandomProjectionQuantizer",
                                              RandomProjectionQuantizerOptions(kDim, 8, 4));
  expect_own_dtype<FSQ>("FSQ", FSQOptions({3, 4}).dim(kDim));
  expect_own_dtype<ResidualFSQ>("ResidualFSQ", ResidualFSQOptions(fsq).dim(kDim));
  expect_own_dtype<GroupedResidualFSQ>("GroupedResidualFSQ",
                                       GroupedResidualFSQOptions(2 * kDim, fsq).groups(2));
  expect_own_dtype<LFQ>("LFQ", LFQOptions().dim(kDim).codebook_size(8));
  expect_own_dtype<ResidualLFQ>("ResidualLFQ", lfq);
  expect_own_dtype<GroupedResidualLFQ>("GroupedResidualLFQ",
                                       GroupedResidualLFQOptions(2 * kDim, lfq).groups(2));
  expect_own_dtype<FSP>("FSP", FSPOptions({3, 4}).dim(kDim));
  expect_own_dtype<LatentQuantize>("LatentQuantize", LatentQuantizeOptions({3, 4}, kDim));
}

TEST(ArchivesTest, AnotherSizeIsRefusedBeforeAnythingIsLoaded) {
  const auto sizes = [](const std::vector<int64_t>& levels) {
    return ResidualVQ(ResidualVQOptions(kDim).codebook_size(levels));
  };
  auto rvq = sizes({8, 5});
  const auto before = tensors_of(*rvq);
  expect_throw_with<c10::ValueError>([&] { copy_by_archive(sizes({8, 4}), rvq); },
                                     "of the archive to have shape [1, 5]");
  expect_equal(tensors_of(*rvq), before);
  SimVQ sim(SimVQOptions(kDim, 16));
  expect_throw_with<c10::ValueError>(
      [&] { copy_by_archive(SimVQ(SimVQOptions(kDim, 8)), sim); },
      "SimVQ: expected frozen_codebook of the archive to have shape [16, 6]");
  LatentQuantize latent(LatentQuantizeOptions({4, 4}, 2));
  expect_throw_with<c10::ValueError>(
      [&] { copy_by_archive(LatentQuantize(LatentQuantizeOptions({3, 4}, 2)), latent); },
      "LatentQuantize: expected values_per_latent.0 of the archive");
  FSQ fsq(FSQOptions({3, 4}).dim(8));
  expect_throw_with<c10::ValueError>(
      [&] { copy_by_archive(FSQ(FSQOptions({3, 4}).dim(kDim)), fsq); },
      "FSQ: expected project_in.weight of the archive");
}

// Copies and casts --------------------------------------------------------------------------------

TEST(ArchivesTest, ClonesKeepFrozenParameters) {
  FSQ fsq(FSQOptions({3, 4}).dim(kDim));
  FSP fsp(FSPOptions({3, 4}).dim(kDim));
  const std::vector<std::shared_ptr<torch::nn::Module>> modules{fsq.ptr(), fsp.ptr()};
  for (const auto& module : modules) {
    for (auto& one : module->parameters()) one.requires_grad_(false);
    module->eval();
    const auto copy = module->clone();
    EXPECT_FALSE(copy->is_training());
    for (const auto& one : copy->parameters()) EXPECT_FALSE(one.requires_grad());
    expect_equal(tensors_of(*copy), tensors_of(*module));
  }
}

TEST(ArchivesTest, AStackOfScalarsInDoubleDecodesItsOutput) {
  const auto x = torch::randn({2, 3, 2}, at::kDouble);
  ResidualFSQ stack(ResidualFSQOptions({3, 4}, 3));
  stack->to(at::kDouble);
  stack->eval();
  const auto copy = std::dynamic_pointer_cast<ResidualFSQImpl>(stack->clone());
  for (const auto& own : {stack.ptr(), copy}) {
    const auto output = own->forward(x, {});
    const auto decoded = own->get_output_from_indices(output.indices);
    EXPECT_EQ(decoded.scalar_type(), at::kDouble);
    EXPECT_TRUE(at::equal(decoded, output.quantized));
  }
  stack->to(at::kFloat);
  EXPECT_EQ(stack->get_output_from_indices(at::zeros({1, 3}, at::kLong)).scalar_type(), at::kFloat);
}

/// What `clone()` gives, as the module's own class.
template <typename Holder>
auto copy_of_now(const Holder& module) {
  return std::dynamic_pointer_cast<typename Holder::ContainedType>(module->clone());
}

TEST(ArchivesTest, CopiesHaveTheOptionsOfTheirParts) {
  const auto x = torch::randn({2, 5, kDim});
  ResidualLFQ lfq(ResidualLFQOptions(kDim, 2, 16));
  lfq->levels[1]->options.entropy_loss_weight(9).commitment_loss_weight(5);
  auto copied_lfq = copy_of_now(lfq);
  EXPECT_TRUE(at::equal(copied_lfq->forward(x).loss, lfq(x).loss));
  GroupedResidualLFQ grouped_lfq(
      GroupedResidualLFQOptions(2 * kDim, ResidualLFQOptions(kDim, 2, 16)).groups(2));
  grouped_lfq->rvqs[1]->levels[1]->options.entropy_loss_weight(9);
  const auto doubled = torch::cat({x, x}, -1);
  auto copied_groups = copy_of_now(grouped_lfq);
  EXPECT_TRUE(at::equal(copied_groups->forward(doubled).loss, grouped_lfq(doubled).loss));
  ResidualSimVQ sim(ResidualSimVQOptions(kDim, 2, 8));
  sim->levels[1]->options.commitment_weight(5);
  auto copied_sim = copy_of_now(sim);
  EXPECT_TRUE(at::equal(copied_sim->forward(x).loss, sim(x).loss));
  ResidualFSQ fsq(ResidualFSQOptions({3, 4}, 2).dim(kDim));
  fsq->levels[1]->options.noise_dropout(0.5);
  EXPECT_EQ(copy_of_now(fsq)->levels[1]->options.noise_dropout(), 0.5);
  GroupedResidualFSQ grouped_fsq(
      GroupedResidualFSQOptions(2 * kDim, ResidualFSQOptions({3, 4}, 2)).groups(2));
  grouped_fsq->rvqs[1]->levels[0]->options.noise_dropout(0.5);
  EXPECT_EQ(copy_of_now(grouped_fsq)->rvqs[1]->levels[0]->options.noise_dropout(), 0.5);
  HierarchicalVQ scales(HierarchicalVQOptions(kDim, 8, std::vector<int64_t>{1, 2}));
  scales->vqs[0]->options.commitment_weight(5);
  scales->vqs[0]->codebook_state->options.decay(0.1);
  const auto copied_scales = copy_of_now(scales);
  EXPECT_EQ(copied_scales->vqs[0]->options.commitment_weight(), 5);
  EXPECT_EQ(copied_scales->vqs[0]->codebook_state->options.decay(), 0.1);
  RandomProjectionQuantizer random(RandomProjectionQuantizerOptions(kDim, 8, 4));
  random->vq->codebook_state->options.decay(0.1);
  EXPECT_EQ(copy_of_now(random)->vq->codebook_state->options.decay(), 0.1);
}

TEST(ArchivesTest, OptionsThatTrainingAnnealsLeaveTheTensorsOfCopies) {
  FSQ fsq(FSQOptions({3, 4}).preserve_symmetry(true).noise_dropout(0.5));
  fsq->options.noise_dropout(0);
  LFQ lfq(LFQOptions().dim(4).codebook_size(16).frac_per_sample_entropy(0.5));
  lfq->options.frac_per_sample_entropy(1);
  ResidualFSQ levels(ResidualFSQOptions({3, 4}, 3).quantize_dropout(true));
  levels->options.quantize_dropout(false);
  ResidualSimVQ sim(ResidualSimVQOptions(kDim, 3, 8).quantize_dropout(true));
  sim->options.quantize_dropout(false);
  const std::vector<std::shared_ptr<torch::nn::Module>> modules{fsq.ptr(), lfq.ptr(), levels.ptr(),
                                                                sim.ptr()};
  for (const auto& module : modules)
    expect_equal(tensors_of(*module->clone()), tensors_of(*module));
  EXPECT_EQ(copy_of_now(fsq)->options.noise_dropout(), 0);
  EXPECT_EQ(copy_of_now(lfq)->options.frac_per_sample_entropy(), 1);
  EXPECT_FALSE(copy_of_now(levels)->options.quantize_dropout());
  EXPECT_FALSE(copy_of_now(sim)->options.quantize_dropout());
}

TEST(ArchivesTest, CopiesOfStacksHaveTheirOwnActivation) {
  auto options = ResidualLFQOptions(4, 2, 16);
  options.lfq().straight_through_activation(torch::nn::AnyModule(torch::nn::Linear(4, 4)));
  ResidualLFQ stack(options);
  GroupedResidualLFQ grouped(GroupedResidualLFQOptions(8, options).groups(2));
  for (const auto& module : {std::shared_ptr<torch::nn::Module>(stack.ptr()),
                             std::shared_ptr<torch::nn::Module>(grouped.ptr())}) {
    const auto copy = module->clone();
    const auto before = tensors_of(*module);
    const torch::NoGradGuard no_grad;
    for (auto& one : copy->parameters()) one.zero_();
    expect_equal(tensors_of(*module), before);
  }
}

// In-place optimizers -----------------------------------------------------------------------------

const auto kSgd = [](std::vector<torch::Tensor> parameters) {
  return std::make_shared<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(1.0));
};

template <typename Module>
void expect_frozen(Module& module, const torch::Tensor& x) {
  for (auto& one : module->parameters()) one.requires_grad_(false);
  const auto before = tensors_of(*module)[0];
  EXPECT_NO_THROW(module(x));
  EXPECT_TRUE(at::equal(tensors_of(*module)[0], before));
}

TEST(ArchivesTest, AnOptimizerWhoseParametersAreFrozenDoesNothing) {
  const auto x = torch::randn({2, 5, kDim});
  auto own =
      VectorQuantizeOptions(kDim).codebook_size(8).learnable_codebook(true).ema_update(false);
  own.in_place_codebook_optimizer(kSgd);
  VectorQuantize vq(own);
  expect_frozen(vq, x);
  for (const bool shared : {false, true}) {
    auto options =
        ResidualVQOptions(kDim).num_quantizers(2).codebook_size(8).shared_codebook(shared);
    options.vq() = own;
    ResidualVQ rvq(options);
    expect_frozen(rvq, x);
  }
  auto latent = LatentQuantizeOptions({3, 4}, 2).channel_first(false);
  LatentQuantize values(latent.in_place_codebook_optimizer(kSgd));
  expect_frozen(values, torch::randn({2, 5, 2}));
}

TEST(ArchivesTest, AnOptimizerLoadedInInferenceModeGoesOn) {
  auto options = VectorQuantizeOptions(kDim).codebook_size(8).learnable_codebook(true);
  options.ema_update(false).in_place_codebook_optimizer([](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::Adam>(std::move(parameters));
  });
  VectorQuantize module(options), from_archive(options), from_state(options);
  const auto x = torch::randn({2, 5, kDim});
  module(x);
  {
    const c10::InferenceMode mode;
    copy_by_archive(module, from_archive);
    load_state_dict(*from_state, state_dict(*module));
  }
  module(x), from_archive(x), from_state(x);
  expect_equal(tensors_of(*from_archive), tensors_of(*module));
  expect_equal(tensors_of(*from_state), tensors_of(*module));
  // Reading the state moves the moments behind the cast codes.
  module->to(torch::kDouble);
  {
    const c10::InferenceMode mode;
    state_dict(*module);
  }
  EXPECT_NO_THROW(module(x.to(torch::kDouble)));
}

TEST(ArchivesTest, AFunctionThatMakesNoOptimizerIsRefused) {
  const auto none = [](const std::vector<torch::Tensor>& /*parameters*/) {
    return std::shared_ptr<torch::optim::Optimizer>();
  };
  const std::string refusal =
      ": expected in_place_codebook_optimizer to return an optimizer, but got none";
  auto own = VectorQuantizeOptions(kDim).learnable_codebook(true).ema_update(false);
  own.in_place_codebook_optimizer(none);
  expect_throw_with<c10::ValueError>([&] { VectorQuantize vq(own); }, "VectorQuantize" + refusal);
  auto stack = ResidualVQOptions(kDim).num_quantizers(2).codebook_size(8).shared_codebook(true);
  stack.vq() = std::move(own);
  expect_throw_with<c10::ValueError>([&] { ResidualVQ rvq(stack); }, "ResidualVQ" + refusal);
  const auto latent = LatentQuantizeOptions({3, 4}, 2).in_place_codebook_optimizer(none);
  expect_throw_with<c10::ValueError>([&] { LatentQuantize values(latent); },
                                     "LatentQuantize" + refusal);
}

TEST(ArchivesTest, OptimizersUnderTheSwitchStepAsThoseOfPython) {
  auto options = ResidualVQOptions(kDim).num_quantizers(2).codebook_size(8).shared_codebook(true);
  options.vq().vqp_compat(true).learnable_codebook(true).ema_update(false);
  options.vq().in_place_codebook_optimizer(kSgd);
  ResidualVQ rvq(options);
  const auto codes = rvq->levels[0]->codebook_state->embed.detach().clone();
  rvq(torch::randn({2, 5, kDim}));
  EXPECT_TRUE(at::equal(rvq->levels[0]->codebook_state->embed, codes));

  auto latent = LatentQuantizeOptions({3, 4}, 2).channel_first(false).vqp_compat(true);
  LatentQuantize values(latent.in_place_codebook_optimizer(kSgd));
  const auto before = tensors_of(*values);
  values(torch::randn({2, 5, 2}));
  EXPECT_FALSE(at::equal(tensors_of(*values)[0], before[0]));
}

/// An optimizer whose step fails.
class Lost : public torch::optim::SGD {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure /*closure*/ = nullptr) override {
    throw std::runtime_error("lost");
  }
};

TEST(ArchivesTest, FailedStepsOfOptimizersLeaveTheGradients) {
  const auto lost = [](std::vector<torch::Tensor> parameters) {
    return std::make_shared<Lost>(std::move(parameters), torch::optim::SGDOptions(0.1));
  };
  auto stack = ResidualVQOptions(kDim).num_quantizers(2).codebook_size(8);
  stack.vq().learnable_codebook(true).ema_update(false).in_place_codebook_optimizer(lost);
  ResidualVQ levels(stack), shared(stack.shared_codebook(true));
  LatentQuantize values(
      LatentQuantizeOptions({3, 4}, 2).channel_first(false).in_place_codebook_optimizer(lost));
  const auto expect_kept = [](auto& module, const torch::Tensor& x) {
    for (const bool earlier : {false, true}) {
      std::vector<torch::Tensor> before;
      for (auto& own : module->parameters()) {
        own.mutable_grad() = earlier ? at::randn_like(own) : torch::Tensor();
        before.push_back(earlier ? own.grad().clone() : torch::Tensor());
      }
      EXPECT_THROW(module->forward(x), std::runtime_error);
      for (size_t i = 0; i < before.size(); ++i) {
        const auto& gradient = module->parameters()[i].grad();
        ASSERT_EQ(gradient.defined(), earlier);
        if (earlier) EXPECT_TRUE(at::equal(gradient, before[i]));
      }
    }
  };
  expect_kept(levels, torch::randn({2, 5, kDim}));
  expect_kept(shared, torch::randn({2, 5, kDim}));
  expect_kept(values, torch::randn({2, 5, 2}));
}

TEST(ArchivesTest, OneLevelDropsNothingAndDrawsNothing) {
  ResidualVQ rvq(ResidualVQOptions(kDim).num_quantizers(1).codebook_size(8).quantize_dropout(true));
  rvq(torch::randn({2, 5, kDim}), ResidualVQForwardOptions().freeze_codebook(true));
  EXPECT_EQ(rvq->levels[0]->codebook_state->rng[1].item<int64_t>(), 0);
}

TEST(ArchivesTest, AnotherOptimizerOfALevelChangesNothing) {
  auto options = ResidualVQOptions(8).num_quantizers(2).codebook_size(16).codebook_dim(4);
  const auto learning = VectorQuantizeOptions(4).learnable_codebook(true).ema_update(false);
  options.vq() = learning;
  options.vq().in_place_codebook_optimizer([](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(0.1));
  });
  ResidualVQ from(options);
  from(at::randn({2, 50, 8}));
  options.vq().in_place_codebook_optimizer([](std::vector<torch::Tensor> parameters) {
    return std::make_shared<torch::optim::SGD>(std::move(parameters),
                                               torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  ResidualVQ to(options);
  const auto before = tensors_of(*to);
  EXPECT_THROW(copy_by_archive(from, to), c10::ValueError);
  expect_equal(tensors_of(*to), before);
}

}  // namespace
}  // namespace torchvq::archives_test
