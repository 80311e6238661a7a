#include "modules/step.h"

#include <torchvq/functional/vector_quantize.h>

#include "modules/losses.h"
#include "modules/search.h"
#include "modules/undo.h"

namespace torchvq::detail {
namespace {

namespace F = functional;

std::vector<at::Tensor> tensors(const std::optional<at::Tensor>& tensor) {
  return tensor ? std::vector{*tensor} : std::vector<at::Tensor>();
}

/// The second half of a step that learns outside of the operator: with accum_ema_update, or of the
/// step after one, statistics are accumulated before the update; codes with an optimizer of their
/// own have learnt before the search.
void learn_apart(VectorQuantizeImpl& vq, F::VectorQuantizeStep& found,
                 const std::optional<InPlaceStep>& own, const Request& request,
                 const F::QuantizerLossOptions& losses) {
  auto& codebook = *vq.codebook_state;
  const auto& searched = found.searched;
  const auto& indices = searched.indices;
  const auto counts =
      own ? own->counts
          : codebook.learn(searched.inputs, indices, searched.mask, request.ema_update,
                           request.accumulate, request.weight, request.ranks);
  if (losses.orthogonal_weight() > 0) {
    found.terms.orthogonal = F::orthogonal_term(codebook.embed, indices, codebook.rng, losses);
    if (!request.targets) {
      found.loss = found.loss.add(found.terms.orthogonal.mul(losses.orthogonal_weight()));
    }
  }
  F::finish_step_({vq.step_counts}, {indices}, {codebook.rng}, tensors(counts),
                  tensors(searched.mask), request.ranks.alone());
}

/// Prepares the search and returns the codes.
CodesOfStep prepared_codes(VectorQuantizeImpl& vq, const at::Tensor& x, const Request& request,
                           const F::TokenLayout& layout) {
  const bool looks = !vq.codebook_state->initialised() || vq.options.affine_param() ||
                     request.transform || vq.learns_in_place();
  // Usually nothing needs the tokens before the search, which splits them itself.
  if (!looks) return {stored_codes(vq, x.scalar_type()), {}};
  const auto split = F::split_tokens(x, request.mask, layout);
  prepare(vq, split.tokens, split.mask, request.frozen, request.ranks);
  return codes_of_step(vq, split.tokens, split.packed, split.mask, request,
                       vq.codebook_state->is_training());
}

Step searched_step(VectorQuantizeImpl& vq, const at::Tensor& x,
                   const std::optional<at::Tensor>& before, const Request& request,
                   const F::TokenLayout& layout) {
  auto& own = *vq.codebook_state;
  const bool training = vq.is_training();
  if (training) {
    own.reset_replaced();
    // A new tensor, so that a copy of the module keeps its own.
    vq.step_counts = own.fresh_counts();
  }
  const auto [codebook, in_place] = prepared_codes(vq, x, request, layout);
  const bool learns = training && own.is_training() && !request.frozen && !request.topk;
  const bool apart = learns && (in_place || own.learns_apart(request.accumulate));
  const auto losses = loss_options(vq, before, request);
  F::VectorQuantizeArguments arguments{codebook,       request.mask, targets_of(vq, request),
                                       request.weight, {},           vq.step_counts};
  if (vq.options.affine_param()) arguments.affine = own.affine_state();
  // The reference asks whether the input requires a gradient, not whether its projection does.
  const auto& reached = before && vq.options.vqp_compat() ? *before : x;
  auto first = losses;
  if (apart) first.orthogonal_weight(0);
  auto found = F::vector_quantize_(
      x, own.state(learns && own.learns(request.ema_update || request.accumulate)), arguments,
      F::VectorQuantizeStepOptions()
          .layout(layout)
          .search(search_options(vq, request, estimator_of(vq, reached, takes_gradient(codebook))))
          .losses(first)
          .learning(own.learning(request.ema_update, request.ranks, request.accumulate))
          .learns(learns && !apart)
          .finishes(training && !apart));
  if (apart) learn_apart(vq, found, in_place, request, losses);
  auto& [commitment, diversity, orthogonal] = found.terms;
  return {found.quantized, found.indices, found.loss,
          LossBreakdown{commitment, diversity, orthogonal,
                        in_place ? in_place->loss : found.loss.new_zeros({})}};
}

CallerCode caller_code(const VectorQuantizeImpl& vq, const Request& request) {
  // Of a step apart, the candidates for dead codes are sent after its first update.
  const bool apart = vq.codebook_state->learns_apart(request.accumulate);
  if (vq.learns_in_place() || (apart && !request.ranks.alone())) return CallerCode::kBetweenUpdates;
  return request.transform ? CallerCode::kBeforeUpdate : CallerCode::kNone;
}

}  // namespace

Step step(VectorQuantizeImpl& vq, const at::Tensor& x, const std::optional<at::Tensor>& before,
          const Request& request, const F::TokenLayout& layout) {
  const auto run = [&] { return searched_step(vq, x, before, request, layout); };
  return vq.is_training() ? undone_if_it_fails({&vq}, run, caller_code(vq, request)) : run();
}

}  // namespace torchvq::detail
