// The steps of a genetic algorithm on bits: populations, mutation, crossover, selection.
//
// Bits are numbers, set where above 0: 0 and 1, or as signs -1 and 1. Every draw is from the
// counter-based generator `rng` (2,), seed and step, which the caller advances afterwards.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::functional {

/// Bits of codes, codebook after codebook, the most significant bit first.
///
/// @param indices   (..., C), int64; -1 gives bits that are not set.
/// @param num_bits  D, bits of a code.
/// @return          (..., C * D), float32.
/// Throws           c10::IndexError for an index outside [-1, 2^D).
TORCHVQ_API at::Tensor indices_to_bits(const at::Tensor& indices, int64_t num_bits,
                                       bool is_sign = false);

/// Codes of bits (..., C * D): indices (..., C), int64.
///
/// Throws c10::ValueError if the last axis is not a multiple of num_bits.
TORCHVQ_API at::Tensor bits_to_indices(const at::Tensor& bits, int64_t num_bits);

/// Fair random bits of a shape, float32, on the device of rng.
TORCHVQ_API at::Tensor random_bits(const at::Tensor& rng, at::IntArrayRef size,
                                   bool is_sign = false);

/// `bits`, each flipped with the probability `rate`.
///
/// Throws  c10::ValueError for a rate outside [0, 1].
TORCHVQ_API at::Tensor mutate_bits(const at::Tensor& bits, const at::Tensor& rng, double rate,
                                   bool is_sign = false);

/// A population (size, *) from bits (B, *): the first of them, or all, repeated; mutated.
///
/// Throws  c10::ValueError for no bits, or a rate outside [0, 1].
TORCHVQ_API at::Tensor grow_population(const at::Tensor& bits, const at::Tensor& rng, int64_t size,
                                       double rate, bool is_sign = false);

/// Each bit from one parent or the other, by a fair coin (Syswerda 1989, Uniform crossover).
TORCHVQ_API at::Tensor cross_bits(const at::Tensor& first, const at::Tensor& second,
                                  const at::Tensor& rng);

/// Rows in order of falling fitness (P,), in stable order; NaN is least fit.
TORCHVQ_API at::Tensor fittest_first(const at::Tensor& fitnesses);

/// As many parents as candidates (P, *): each is the fittest of `tournament_size` draws with
/// replacement (Goldberg and Deb 1991, A comparative analysis of selection schemes).
///
/// @param fitnesses  (P,); NaN is least fit.
/// Throws            c10::ValueError for tournament_size below 1, or shapes that do not fit.
TORCHVQ_API at::Tensor select_parents(const at::Tensor& population, const at::Tensor& fitnesses,
                                      const at::Tensor& rng, int64_t tournament_size);

}  // namespace torchvq::functional
