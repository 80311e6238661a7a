// The update of the codebooks of several levels, or scales, in one training step.
#pragma once

#include <vector>

#include <torchvq/functional/learn_codebooks.h>
#include <torchvq/modules/vector_quantize.h>

#include "modules/ranks.h"

namespace torchvq::detail {

/// Whether a training forward may change the codebook of a level.
bool trains(const VectorQuantizeImpl& vq, bool frozen);

/// Whether a training forward draws random numbers from the generator of a level.
bool draws(const VectorQuantizeImpl& vq, bool frozen);

/// Whether one call serves the codebooks of all levels: they learn by the same options, and those
/// that keep statistics have kept as many steps, unlike those of a level that was frozen for a while.
bool learn_alike(const std::vector<const VectorQuantizeImpl*>& levels);

/// A codebook in a training step.
struct LearningLevel {
  const VectorQuantizeImpl* vq;
  functional::StepTokens tokens;  ///< empty for a level that is dropped or does not train
  bool trains;
};

/// A training step of codebooks, with one exchange for all if they have the same options. Returns
/// the tokens per code (H, K) of each, of all ranks; undefined for one that does not learn. The
/// averages decay `decays` times; more than once only those of a single codebook.
std::vector<at::Tensor> learn_together(const std::vector<LearningLevel>& levels, const Ranks& ranks,
                                       int64_t decays = 1);

/// A level in use, as the end of a step sees it.
struct FinishedLevel {
  at::Tensor rng;
  functional::StepTokens tokens;
  at::Tensor counts;  ///< of learn_together(); may be undefined
  bool draws;         ///< whether its generator advances
};

/// Counts the use of codes, for stats(), and advances the generators; one that several levels share
/// once. See functional::finish_step_().
void finish_levels(at::TensorList step_counts, const std::vector<FinishedLevel>& levels,
                   const Ranks& ranks);

}  // namespace torchvq::detail
