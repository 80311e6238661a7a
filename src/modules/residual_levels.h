// The search of all levels of a residual stack, and the update of their codebooks.
//
// Order of a training forward: all levels search with the codes from the start of the step, each
// the residual of the previous one; losses are computed; then all levels learn. So no level sees
// the update of another, and one reduction over ranks serves the whole stack.
// docs/design/residual.md has the decisions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torchvq/modules/residual_vq.h>

#include "functional/residual_walk.h"
#include "modules/implicit_search.h"
#include "modules/layout.h"
#include "modules/request.h"

namespace torchvq::detail {

/// The arguments of one forward of a stack.
struct StackRequest {
  std::optional<at::Tensor> mask;  ///< (B, N)
  int64_t batch;
  int64_t tokens;                   ///< N
  std::vector<at::Tensor> targets;  ///< per level, in the shape of forward's indices; or empty
  std::optional<double> temperature;
  bool frozen;
  int64_t depth;  ///< levels in use
  distributed::Ranks ranks;
  int64_t beam = 1;    ///< number of paths that the search keeps
  std::string groups;  ///< the groups that train, for the first of them; empty if all do
};

/// The result of one level.
struct Level {
  VectorQuantizeImpl* vq;
  Request request;
  SearchResult result;
  std::optional<Implicit> implicit;
};

/// The whole stack: its output before the last projection (H, T, D), and its levels in use.
struct Walk {
  at::Tensor output;
  std::vector<Level> levels;
};

/// The order of batch, positions and features in inputs and outputs.
Layout layout_of(const ResidualVQImpl& rvq);

/// Whether the codes take a gradient.
bool codes_learn(const ResidualVQImpl& rvq);

/// Whether padding is left as it is, because the diversity loss covers it, as in the reference.
bool sees_padding(const ResidualVQImpl& rvq);

/// The estimator of the stack, for these projected inputs.
functional::StackGradient gradient_of(const ResidualVQImpl& rvq, const at::Tensor& inputs);

std::vector<VectorQuantizeImpl*> levels_of(const ResidualVQImpl& rvq);

/// The codebooks of all levels; a shared codebook once.
std::vector<Codebook> codebooks_of(const ResidualVQImpl& rvq);

/// Their states; `learns`: for a step that may learn, see CodebookImpl::state().
std::vector<functional::CodebookState> states_of(const ResidualVQImpl& rvq, bool learns);

/// Searches level after level. inputs: (H, T, D), projected, float32 or float64.
Walk walk(ResidualVQImpl& rvq, const at::Tensor& inputs, const StackRequest& request);

/// A forward of one stack before it learns.
struct Pending {
  ResidualVQImpl* rvq;
  at::Tensor x;
  at::Tensor tokens;  ///< (B, N, heads * D), projected
  StackRequest request;
  bool all_codes;
  Walk walk;  ///< after the search; without levels if none is scored or learns any more
  ResidualVQOutput output;  ///< the output of such a forward
};

/// The losses of all levels (Q,) of each of several stacks with equal options that were walked, and
/// in training the update of their codebooks, with one exchange over ranks for all.
std::vector<at::Tensor> learn(const std::vector<const Pending*>& stacks);

/// The request of a forward, without the numbers of tokens and levels. Throws for wrong arguments,
/// and writes nothing.
StackRequest checked_request(const ResidualVQImpl& rvq, const at::Tensor& x,
                             const ResidualVQForwardOptions& call);

/// The beginning of forward, up to the handshake with other ranks. A stack that drops levels uses
/// `depth` of them if given, otherwise sets it.
///
/// @param request   checked_request() of the same call.
Pending start(ResidualVQImpl& rvq, const at::Tensor& x, const ResidualVQForwardOptions& call,
              StackRequest request, std::optional<int64_t>& depth);

/// The rest, for stacks with equal options that were started by the same call.
std::vector<ResidualVQOutput> finish(std::vector<Pending> stacks);

}  // namespace torchvq::detail
