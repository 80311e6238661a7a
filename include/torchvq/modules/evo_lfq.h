// EvoLFQ: evolutionary search over the bits of lookup-free codes, between an encoder and a decoder.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <torchvq/export.h>
#include <torchvq/modules/kept_buffers.h>
#include <torchvq/modules/lfq.h>
#include <torchvq/options/evo_lfq.h>

namespace torchvq {

/// The result of a forward of EvoLFQ.
struct EvoLFQOutput {
  torch::Tensor reconstructed;     ///< the decoded codes
  torch::Tensor indices;           ///< as LookupFreeOutput
  torch::Tensor entropy_aux_loss;  ///< scalar; 0 in evaluation
  LookupFreeLossBreakdown loss_breakdown;
};

/// One generation: the next population, and the fittest candidate so far.
struct EvoLFQGeneration {
  torch::Tensor pop_bits;
  torch::Tensor best_gene;
  double best_fitness;
  torch::Tensor best_decoded;  ///< if requested, else undefined
};

/// A genetic algorithm on the bits of an autoencoder's lookup-free codes.
///
/// Candidates are bits (*, C * D) of all positions, features last in every layout, 0 and 1, or with
/// is_sign -1 and 1. A generation keeps the fittest candidates and fills up with mutated crossovers
/// of tournament winners. Only forward() has a gradient: it is the autoencoder, which is trained
/// first.
///
/// Formula  functional/evolution.h
/// Paper    Goldberg and Deb 1991, A comparative analysis of selection schemes; Syswerda 1989,
///          Uniform crossover
/// Parity   vector-quantize-pytorch, class EvoLFQ; the same options and state names
///
/// Example:
/// ```
/// torchvq::EvoLFQ evo(torch::nn::AnyModule(torch::nn::Linear(32, 16)),
///                     torch::nn::AnyModule(torch::nn::Linear(16, 32)),
///                     torchvq::EvoLFQOptions(torchvq::LFQOptions().dim(16)));
/// auto best = evo->evolve(fitness, torchvq::EvoLFQEvolveOptions().shape({{8, 16}})).best_gene;
/// ```
class TORCHVQ_API EvoLFQImpl : public KeptBuffers<EvoLFQImpl> {
 public:
  /// Maps decoded candidates (P, ...) and their bits to one number per candidate (P,); larger is
  /// fitter, and NaN is least fit. Called without gradient, with all modules in evaluation.
  using Fitness = std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)>;

  /// @param encoder  module that maps data to the input of `lfq`.
  /// @param decoder  module that maps the output of `lfq` to data.
  EvoLFQImpl(torch::nn::AnyModule encoder, torch::nn::AnyModule decoder, EvoLFQOptions options);

  void reset() override;
  void pretty_print(std::ostream& stream) const override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

  /// decoder(lfq(encoder(x))); arguments beyond x as for LFQImpl::forward.
  EvoLFQOutput forward(const torch::Tensor& x, double inv_temperature = 100.0,
                       const std::optional<torch::Tensor>& mask = std::nullopt);
  /// Bits (B, *, C * D), float32, of data: 0 and 1, with return_signs -1 and 1.
  torch::Tensor encode(const torch::Tensor& x, bool return_signs = false);
  /// Data of bits (B, *, C * D), set where above 0; without gradient, with all modules in evaluation.
  ///
  /// Throws c10::ValueError for another number of features.
  torch::Tensor decode_bits(const torch::Tensor& bits);

  /// Fair random bits (P, *shape); shape ends with the C * D features, which it is by default.
  torch::Tensor init_random_population(std::optional<int64_t> pop_size = std::nullopt,
                                       const std::optional<std::vector<int64_t>>& shape = {},
                                       bool is_sign = false);
  /// (P, *, C * D): the bits of the first P items of the batch, or of all, repeated; mutated.
  torch::Tensor init_population_from_data(const torch::Tensor& x,
                                          std::optional<int64_t> pop_size = std::nullopt,
                                          std::optional<double> mutation_rate = std::nullopt,
                                          bool is_sign = false);
  /// The population with each bit flipped with the probability mutation_rate.
  torch::Tensor mutate(const torch::Tensor& population,
                       std::optional<double> mutation_rate = std::nullopt, bool is_sign = false);
  /// As many parents as candidates: each is the fittest of tournament_size draws with replacement.
  torch::Tensor tournament_selection(const torch::Tensor& population,
                                     const torch::Tensor& fitnesses,
                                     std::optional<int64_t> tournament_size = std::nullopt);
  /// Each bit from one parent or the other, by a fair coin.
  torch::Tensor uniform_crossover(const torch::Tensor& parent1, const torch::Tensor& parent2);

  /// One generation: the next population, with the survivors first in order of fitness, and the
  /// fitness (P,) of this one.
  ///
  /// Throws c10::ValueError for an elitism_count outside [0, P), or fitness of another shape.
  std::pair<torch::Tensor, torch::Tensor> step(const torch::Tensor& pop_bits,
                                               const Fitness& fitness_fn,
                                               const EvoLFQStepOptions& call = {});
  /// Searches, and returns the last generation. `each` is called with every generation, and ends
  /// the search by returning false.
  EvoLFQGeneration evolve(const Fitness& fitness_fn, const EvoLFQEvolveOptions& call,
                          const std::function<bool(const EvoLFQGeneration&)>& each = {});

  EvoLFQOptions options;
  torch::nn::AnyModule encoder, decoder;
  LFQ lfq{nullptr};
  torch::Tensor rng;  ///< (2,), int64: seed and step; every draw counts a step

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(100.0)},
                           {2, torch::nn::AnyValue(std::optional<torch::Tensor>())})

 private:
  torch::Tensor fitness_of(const torch::Tensor& bits, const Fitness& fitness_fn,
                           std::optional<int64_t> batch_size);
  /// Counts a draw.
  torch::Tensor drawn(torch::Tensor result);

  EvoLFQOptions built_from_;  ///< the options at construction, from which clone() builds
};

TORCH_MODULE(EvoLFQ);

}  // namespace torchvq
