// Options of EvoLFQ. The names, meanings and defaults are those of the Python class.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <torch/arg.h>
#include <torch/types.h>

#include <torchvq/export.h>
#include <torchvq/options/lfq.h>

namespace torchvq {

/// Options of an EvoLFQ module.
struct TORCHVQ_API EvoLFQOptions {
  /// @param lfq  options of the quantizer between encoder and decoder.
  explicit EvoLFQOptions(LFQOptions lfq) : lfq_(std::move(lfq)) {}

  /// Throws c10::ValueError for an option out of range.
  void validate() const;

  /// Options of the quantizer.
  TORCH_ARG(LFQOptions, lfq);
  /// Candidates P of a population, above elitism_count. Default: 64.
  TORCH_ARG(int64_t, pop_size) = 64;
  /// Probability, in [0, 1], that a bit flips. Default: 0.02.
  TORCH_ARG(double, mutation_rate) = 0.02;
  /// Candidates that compete to become a parent, at least 1. Default: 2.
  TORCH_ARG(int64_t, tournament_size) = 2;
  /// Fittest candidates that survive unchanged, 0 or more. Default: 1.
  TORCH_ARG(int64_t, elitism_count) = 1;
  /// Generations of evolve(). Default: 50.
  TORCH_ARG(int64_t, generations) = 50;
};

/// Options of one generation; unset fields follow the module's options.
struct TORCHVQ_API EvoLFQStepOptions {
  TORCH_ARG(std::optional<int64_t>, tournament_size);
  TORCH_ARG(std::optional<double>, mutation_rate);
  TORCH_ARG(std::optional<int64_t>, elitism_count);
  /// Bits are -1 and 1. Default: false.
  TORCH_ARG(bool, is_sign) = false;
  /// Candidates that are decoded together; all are scored together. Default: all.
  TORCH_ARG(std::optional<int64_t>, batch_size);
};

/// Options of a search.
struct TORCHVQ_API EvoLFQEvolveOptions {
  /// The initial population. Default: a random one of pop_size and shape.
  TORCH_ARG(std::optional<torch::Tensor>, pop_bits);
  /// Size of the population. Default: the module's.
  TORCH_ARG(std::optional<int64_t>, pop_size);
  /// Shape of a candidate, with the features last; required without pop_bits.
  TORCH_ARG(std::optional<std::vector<int64_t>>, shape);
  /// Number of generations. Default: the module's.
  TORCH_ARG(std::optional<int64_t>, generations);
  /// Decode the fittest candidate in each generation. Default: false.
  TORCH_ARG(bool, return_best_decoded) = false;
  /// Options of each generation.
  TORCH_ARG(EvoLFQStepOptions, step);
};

}  // namespace torchvq
