// Forward and decoding of residual stacks whose levels learn no codebook. A family defines its
// levels; the rest is here, shared by all families, as in Python's _residual/stack.py.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <torchvq/functional/quantize_depth.h>
#include <torchvq/modules/kept_buffers.h>

#include "modules/layout.h"

namespace torchvq::detail {

/// The result of one level.
struct LevelResult {
  at::Tensor codes;    ///< (B, N, D), on the scale of the input of the stack
  at::Tensor indices;  ///< (B, N)
};

/// The results of levels that were processed together.
struct LevelsResult {
  at::Tensor total;               ///< (B, N, D), the sum of the codes
  at::Tensor indices;             ///< (B, N, depth)
  std::vector<at::Tensor> codes;  ///< (B, N, D) of each level; empty if not requested
};

/// How the gradient of a stack's output reaches its input.
enum class StackGain {
  /// Levels pass on the gradient of the residual: 1 - (1 - g_0) (1 - g_1) ..., g_n that of level n.
  kAttached,
  /// They do not, and gains add up, as in vector-quantize-pytorch.
  kSummed,
  /// The same divided by the number of levels.
  kAveraged,
  /// They do not, and estimate() gives the sum of the codes its gradient.
  kEstimated,
};

/// Base of the families of stacks. An object serves one forward or one decoding.
struct ResidualStack {
  Layout layout;
  int64_t levels = 1;
  torch::nn::Linear project_in{nullptr}, project_out{nullptr};  ///< empty without projection
  StackGain gain = StackGain::kAttached;
  const HalfPrecision* module = nullptr;  ///< decodes in its half precision, if it has one
  /// Codes of all levels are decoded from the indices, as in vector-quantize-pytorch.
  bool vqp_compat = false;

  ResidualStack() = default;
  ResidualStack(const ResidualStack&) = delete;
  ResidualStack& operator=(const ResidualStack&) = delete;
  virtual ~ResidualStack() = default;

  /// The input of the first level from projected tokens (B, N, D), float32 or float64, and their
  /// mask. With several heads, N counts each head as a token, here and below.
  virtual at::Tensor prepare_inputs(const at::Tensor& inputs,
                                    const std::optional<at::Tensor>& mask);
  /// `depth` levels; mask (B, N) is for losses. Without `all_codes` the result may have none.
  virtual LevelsResult process_levels(const at::Tensor& inputs,
                                      const std::optional<at::Tensor>& mask, int64_t depth,
                                      bool all_codes) = 0;
  /// Codes (*, D) of indices (*) of a level, on the scale of the stack's input; -1 gives zeros.
  virtual at::Tensor decode_level(int64_t index, const at::Tensor& indices) = 0;
  /// The sum of the codes with its gradient to the inputs, for kEstimated.
  virtual at::Tensor estimate(const at::Tensor& inputs, const at::Tensor& total);

 protected:
  /// The result of process_levels() by calling `quantize_level` for each level in turn, with the
  /// residual (B, N, D) that the levels before it leave.
  LevelsResult process_in_turn(
      const at::Tensor& inputs, int64_t depth,
      const std::function<LevelResult(int64_t index, const at::Tensor& residual)>& quantize_level)
      const;
};

/// The result of a forward.
struct StackResult {
  at::Tensor quantized;  ///< the layout and dtype of the input
  at::Tensor indices;    ///< (B, *, Q), -1 where masked or dropped
  at::Tensor all_codes;  ///< (Q, B, *, D) if requested, otherwise undefined
};

/// The mask (B, N) of a forward, from one per position or one per item. Throws for x or a mask of
/// another dtype or shape; call it before anything is drawn or sent.
std::optional<at::Tensor> checked_mask(const Layout& layout, const at::Tensor& x,
                                       const std::optional<at::Tensor>& mask);

/// The forward of a stack with `depth` of its levels, for x and mask of checked_mask().
StackResult run_stack(ResidualStack& stack, const at::Tensor& x,
                      const std::optional<at::Tensor>& mask, int64_t depth, bool all_codes);

/// Codes (Q, B, *, D) of indices (B, *, q); with `fewer`, q may be below Q, and
/// missing levels give zeros.
at::Tensor stack_codes(ResidualStack& stack, const at::Tensor& indices, bool fewer);

/// The output of run_stack() for indices (B, *, q), in the same layout;
/// zeros if all indices are -1.
at::Tensor stack_output(ResidualStack& stack, const at::Tensor& indices, bool fewer);

/// Throws c10::ValueError where a forward draws depths and dropout was set after construction,
/// which makes their generator.
void check_depths(const char* owner, bool draws, const at::Tensor& rng);

/// The number of levels that a forward with dropout uses: from the given seed, otherwise
/// only from the step of `rng` (2,), so that ranks with different seeds drop the same
/// levels without communication.
int64_t stack_depth(const std::optional<int64_t>& seed, const at::Tensor& rng,
                    const functional::DepthRule& rule);

/// The number of levels that a forward of a stack with these options uses. The groups that drop
/// levels use as many: the first of them sets `depth`.
template <typename Options>
int64_t depth_in_use(const Options& options, bool dropping, const std::optional<int64_t>& seed,
                     const at::Tensor& rng, std::optional<int64_t>& depth) {
  const auto levels = options.num_quantizers();
  if (!dropping) return levels;
  if (!depth) {
    depth = stack_depth(
        seed, rng,
        {levels, options.quantize_dropout_cutoff_index(), options.quantize_dropout_multiple_of()});
  }
  return *depth;
}

/// The ranks that share a forward: the group of the first level that has one, because a level may
/// evaluate, or learn by itself. Empty if none has one.
template <typename Levels, typename GroupOf>
std::string shared_group(const Levels& levels, const GroupOf& group_of) {
  for (const auto& level : levels) {
    if (auto group = group_of(*level); !group.empty()) return group;
  }
  return "";
}

}  // namespace torchvq::detail
