// What a forward of VectorQuantize searches, and how its output gets a gradient.
#pragma once

#include <optional>
#include <string>

#include <torchvq/functional/quantize.h>
#include <torchvq/modules/vector_quantize.h>

#include "modules/request.h"

namespace torchvq::detail {

/// What a stack asks of one of its levels.
///
/// @param targets  in the shape of forward's indices.    @param mask  (B, N).
Request request_of_level(const VectorQuantizeImpl& vq, const std::optional<at::Tensor>& targets,
                         const std::optional<at::Tensor>& mask, std::optional<double> temperature,
                         bool frozen, const distributed::Ranks& ranks);

/// What precedes the search for tokens (H, T, D); a frozen codebook is initialised all the same.
void prepare(VectorQuantizeImpl& vq, const at::Tensor& x, const std::optional<at::Tensor>& mask,
             bool frozen, const distributed::Ranks& ranks);

/// The operators' name of the gradient of the output.
std::string estimator_of(const VectorQuantizeImpl& vq);

/// The codes (H, K, D) for tokens that are projected to a dtype.
at::Tensor stored_codes(VectorQuantizeImpl& vq, at::ScalarType dtype);

/// The codes for tokens (B, N, dim): those, or one set for each token (H, T, K, D).
at::Tensor codes_to_search(VectorQuantizeImpl& vq, const Request& request, const at::Tensor& tokens,
                           at::ScalarType dtype);

/// The codes that a step searches.
struct CodesOfStep {
  at::Tensor codebook;  ///< (H, K, D), or codes of each token (H, T, K, D)
  at::Tensor in_place;  ///< the loss that the codebook's own optimizer has gone down; or undefined
};

/// The codes for tokens (B, N, dim), projected to (H, T, D), after the step of the codebook's own
/// optimizer, if it has one.
CodesOfStep codes_of_step(VectorQuantizeImpl& vq, const at::Tensor& projected,
                          const at::Tensor& tokens, const std::optional<at::Tensor>& mask,
                          const Request& request);

/// How a call searches, with the gradient that the estimator of this name gives.
functional::QuantizeOptions search_options(const VectorQuantizeImpl& vq, const Request& request,
                                           const std::string& estimator);

/// Whatever a level of a stack has of its own in a search.
struct SearchOptions {
  std::optional<std::string> estimator;  ///< default: the module's own
  std::optional<at::Tensor> rng;         ///< (2,), for sampling and noise; default: the codebook's
  std::optional<at::Tensor> chosen;      ///< (H, T), codes already chosen; nothing is searched then
};

/// The codes of a step, and the search in them. Learning comes after.
///
/// @param projected  (H, T, D), what is searched for; the same tokens as `tokens` (B, N, dim).
/// @param mask       (H, T).
SearchResult choose(VectorQuantizeImpl& vq, const at::Tensor& projected, const at::Tensor& tokens,
                    const std::optional<at::Tensor>& mask, const Request& request,
                    const SearchOptions& options = {});

}  // namespace torchvq::detail
