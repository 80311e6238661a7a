// When a code that gets no tokens is no longer in use, and how far it moves then. Torch-free; src/detail/unused_codes.cpp
// has the same in tensor operators.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/on_device.h"

namespace torchvq::kernels {

/// How many times as long as a code with an equal share of the tokens waits for one, on average, an unused code has
/// waited.
constexpr double kPatience = 8;
constexpr double kLongestWait = 1 << 20;  // steps

/// The share of the distance to its heavy code by which an unused code moves. From there it takes the tokens on its side;
/// on the heavy code itself it would take none.
constexpr double kDrawn = 0.8;

/// A code without tokens in the batch whose average is below this is faint, and stays where it is: the smoothing would
/// pull it to the origin. One token of weight 1 lifts an average above.
TORCHVQ_ON_DEVICE constexpr double faint_below(double decay) {
  const double most = 3e-2, half = (1 - decay) / 2;
  return half < most ? half : most;
}

/// The highest average of an unused code. Until then the reference's code is about where it was as well (the smoothing
/// has halved it here), and still there when data come back that a run does without for some steps, such as a class.
constexpr double kGone = 1e-5;

TORCHVQ_ON_DEVICE constexpr double gone_below(double decay) {
  const double faint = faint_below(decay);
  return kGone < faint ? kGone : faint;
}

/// A faint code whose average is below this is unused, and moves to a heavy one. `total` is the sum of the averages of
/// all `size` codes, the tokens of a step. 0, which no average is below, if there are none.
TORCHVQ_ON_DEVICE inline double unused_below(double decay, double total, int64_t size) {
  if (!(total > 0)) return 0;
  double wait = std::ceil(kPatience * static_cast<double>(size) / total);
  if (!(wait < kLongestWait)) wait = kLongestWait;
  // Half way between what is left of one token after `wait` steps and one step earlier.
  double left = (1 - decay) * ((1 + decay) / 2), power = decay;
  for (auto bits = static_cast<int64_t>(wait) - 1; bits > 0; bits >>= 1) {
    if ((bits & 1) != 0) left *= power;
    power *= power;
  }
  const double gone = gone_below(decay);
  return left < gone ? left : gone;
}

/// What an unused code moves by, where a step moves averages by `step`, (1 - decay) times the weight of the code: less
/// with a weight below 1, never more.
TORCHVQ_ON_DEVICE constexpr double drawn_by(double step, double decay) {
  const double weight = step / (1 - decay);
  return kDrawn * (weight < 0 ? 0 : weight > 1 ? 1 : weight);
}

}  // namespace torchvq::kernels
