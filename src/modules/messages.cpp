#include "modules/messages.h"

#include <algorithm>
#include <ios>
#include <sstream>

#include "modules/learn_levels.h"
#include "options/text.h"

namespace torchvq::detail {
namespace {

/// What decides which messages a call sends.
struct Sending {
  bool frozen;
  bool begins;         ///< whether k-means has not set all codes
  bool ema_update;     ///< whether the statistics move the codes, now or later
  bool learns = true;  ///< whether the call may learn
  bool apart = false;  ///< whether the statistics are accumulated before the update
};

std::string joined_messages(const std::vector<std::string>& sent) {
  std::string text;
  for (const auto& message : sent) text += (text.empty() ? "" : " and ") + message;
  return text;
}

/// The messages of a training forward, in their order, besides those of k-means.
std::string messages_of(const VectorQuantizeImpl& vq, const Sending& call) {
  const auto& options = vq.options;
  const bool trains = !call.frozen;
  std::vector<std::string> sent;
  const auto& state = vq.codebook_state->options;
  if ((trains || call.begins) && state.affine_param() && state.sync_affine_param()) {
    sent.emplace_back("moments");
  }
  if (trains && vq.learns_in_place()) sent.emplace_back("gradients");
  if (options.codebook_diversity_loss_weight() > 0 && !options.vqp_compat()) {
    sent.emplace_back("probabilities");
  }
  if (trains && call.learns && vq.codebook_state->learns(call.ema_update)) {
    // "statistics" are a message that carries candidates for dead codes as well, "statistics alone"
    // is one that does not.
    sent.emplace_back(call.apart ? "statistics alone" : "statistics");
  }
  return joined_messages(sent);
}

/// The options of a quantizer, or of a level, that a stack does not list for all its levels.
std::string level_signature(const VectorQuantizeImpl& vq) {
  const auto& options = vq.options;
  const auto& state = vq.codebook_state->options;
  std::ostringstream text;
  text << std::boolalpha << "k-means of " << state.kmeans_iters() << " iterations over ranks "
       << state.sync_kmeans() << ", affine map over ranks " << state.sync_affine_param()
       << " with decays " << option_text(state.affine_param_batch_decay()) << " and "
       << option_text(state.affine_param_codebook_decay()) << ", diversity "
       << option_text(options.codebook_diversity_loss_weight()) << " at "
       << option_text(options.codebook_diversity_temperature()) << ", own optimizer "
       << vq.in_place_optimizer_text() << ", manual " << options.manual_in_place_optimizer_update();
  return text.str();
}

std::string quantizer_signature(const VectorQuantizeImpl& vq) {
  std::ostringstream text;
  text << std::boolalpha << level_signature(vq) << ", moving averages " << vq.resolved().ema_update
       << ", frozen " << vq.options.freeze_codebook();
  return text.str();
}

/// The levels whose options are not those of the first, which the call names.
std::string other_levels(const std::vector<VectorQuantizeImpl*>& levels) {
  const auto first = level_signature(*levels[0]);
  std::string text;
  for (size_t index = 1; index < levels.size(); ++index) {
    const auto own = level_signature(*levels[index]);
    if (own != first) text += "; level " + std::to_string(index) + " with " + own;
  }
  return text;
}

std::string call_text(const VectorQuantizeImpl& vq, const Sending& call, at::ScalarType dtype) {
  auto sent = messages_of(vq, call);
  const std::string prefix = call.frozen && !sent.empty() ? "frozen, " : "";
  if (sent.empty() && call.begins) {
    sent = "k-means";
  } else if (sent.empty()) {
    // A call that sends nothing uses the text of an ordinary call, so that it does not cause a
    // disagreement.
    sent = messages_of(vq, {.frozen = vq.options.freeze_codebook(),
                            .begins = false,
                            .ema_update = vq.resolved().ema_update});
  }
  return prefix + tokens_text(dtype) + ", sharing " + (sent.empty() ? "nothing" : sent) + "; " +
         quantizer_signature(vq);
}

/// The levels that do not train, or whose codes the statistics do not move: they send other
/// messages, or have other tokens in these.
std::string special_levels(const std::vector<VectorQuantizeImpl*>& levels) {
  const auto evaluating = numbers_of(
      levels, [](const VectorQuantizeImpl& vq) { return !trains(vq, /*frozen=*/false); });
  const auto unmoved =
      numbers_of(levels, [](const VectorQuantizeImpl& vq) { return !vq.resolved().ema_update; });
  std::string text;
  if (!evaluating.empty()) text += ", evaluating levels" + evaluating;
  if (!unmoved.empty()) text += ", without averages" + unmoved;
  return text;
}

}  // namespace

std::string numbers_of(const std::vector<VectorQuantizeImpl*>& levels,
                       const std::function<bool(const VectorQuantizeImpl&)>& holds) {
  std::string text;
  for (size_t index = 0; index < levels.size(); ++index) {
    if (holds(*levels[index])) text += " " + std::to_string(index);
  }
  return text;
}

void agree(const VectorQuantizeImpl& vq, const Request& request, at::ScalarType dtype) {
  if (request.ranks.alone()) return;
  const auto& codebook = vq.codebook_state;
  const Sending call{.frozen = request.frozen,
                     .begins = !codebook->initialised(),
                     .ema_update = request.ema_update || request.accumulate,
                     .learns = codebook->is_training() && !request.topk,
                     .apart = codebook->learns_apart(request.accumulate)};
  auto text = call_text(vq, call, dtype);
  // Ranks compare how a call uses its statistics when they exchange these. A call that sends k-means
  // or the affine map first compares that here, before anything is written.
  const bool early = !request.frozen && (call.begins || vq.options.affine_param());
  if (early && (request.weight || request.ema_update != vq.resolved().ema_update)) {
    text = std::string("moving averages ") + (request.ema_update ? "true" : "false") +
           (request.weight ? ", weight, " : ", no weight, ") + text;
  }
  handshake({codebook}, request.ranks, text);
}

void agree_to_learn(const VectorQuantizeImpl& vq, const Ranks& ranks, at::ScalarType dtype,
                    const std::string& sent) {
  if (ranks.alone()) return;
  handshake({vq.codebook_state}, ranks,
            tokens_text(dtype) + ", sharing " + sent + "; " + quantizer_signature(vq));
}

void agree_in_stack(const StackCall& call, const Ranks& ranks) {
  const auto& first = *call.levels[0];
  const auto set = [](const Codebook& codebook) { return codebook->initialised(); };
  const bool begins = !std::all_of(call.codebooks.begin(), call.codebooks.end(), set);
  auto text = call_text(
      first, {.frozen = call.frozen, .begins = begins, .ema_update = first.resolved().ema_update},
      call.dtype);
  if (call.seeded_depth) text = std::to_string(*call.seeded_depth) + " levels by seed, " + text;
  handshake(call.codebooks, ranks,
            text + other_levels(call.levels) + "; " + call.signature + special_levels(call.levels));
}

}  // namespace torchvq::detail
