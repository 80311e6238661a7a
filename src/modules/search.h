// The search of a forward of VectorQuantize, and the gradient of its output.
#pragma once

#include <optional>
#include <string>

#include <torchvq/functional/quantize.h>
#include <torchvq/modules/vector_quantize.h>

#include "modules/in_place.h"
#include "modules/request.h"

namespace torchvq::detail {

/// The request of a level of a stack.
///
/// @param targets  in the shape of forward's indices.    @param mask  (B, N).
Request request_of_level(const VectorQuantizeImpl& vq, const std::optional<at::Tensor>& targets,
                         const std::optional<at::Tensor>& mask, std::optional<double> temperature,
                         bool frozen, const distributed::Ranks& ranks);

/// Prepares the search for tokens (H, T, D); this initialises a frozen codebook as well.
void prepare(VectorQuantizeImpl& vq, const at::Tensor& x, const std::optional<at::Tensor>& mask,
             bool frozen, const distributed::Ranks& ranks);

/// Whether results that depend on x will have a gradient. Where gradients are off, a leaf still says
/// that it requires one, but a padded copy of it does not.
bool takes_gradient(const at::Tensor& x);

/// The operators' name for the gradient of the output.
///
/// @param x            the tensor that it should reach. If it takes none, it goes to the codes.
/// @param codes_learn  whether the codes take a gradient.
std::string estimator_of(const VectorQuantizeImpl& vq, const at::Tensor& x, bool codes_learn);

/// Whether a frozen step of a quantizer with these options draws random numbers.
bool draws_frozen(const VectorQuantizeOptions& options);

/// The codes (H, K, D), in a dtype that fits tokens projected to `dtype`.
at::Tensor stored_codes(VectorQuantizeImpl& vq, at::ScalarType dtype);

/// The codes for tokens (B, N, dim): the stored codes, or separate ones for
/// each token (H, T, K, D).
at::Tensor codes_to_search(VectorQuantizeImpl& vq, const Request& request, const at::Tensor& tokens,
                           at::ScalarType dtype);

/// The codes that a step searches.
struct CodesOfStep {
  at::Tensor codebook;             ///< (H, K, D), or codes of each token (H, T, K, D)
  std::optional<InPlaceStep> own;  ///< the step of the in-place optimizer, if there was one
};

/// The codes for tokens (B, N, dim), projected to (H, T, D), after the step of the in-place
/// optimizer, if there is one.
///
/// @param learns  see in_place_step().
CodesOfStep codes_of_step(VectorQuantizeImpl& vq, const at::Tensor& projected,
                          const at::Tensor& tokens, const std::optional<at::Tensor>& mask,
                          const Request& request, bool learns = false);

/// The options of a search, with the estimator of this name.
functional::QuantizeOptions search_options(const VectorQuantizeImpl& vq, const Request& request,
                                           const std::string& estimator);

/// The options that a level of a stack passes to a search.
struct SearchOptions {
  std::optional<std::string> estimator;  ///< default: the module's own
  std::optional<at::Tensor> rng;         ///< (2,), for sampling and noise; default: the codebook's
  std::optional<at::Tensor> chosen;      ///< (H, T), indices already chosen: skips the search
};

/// Gets the codes of a step and searches them. Learning comes later.
///
/// @param projected  (H, T, D), the vectors to search for; the same tokens as `tokens` (B, N, dim).
/// @param mask       (H, T).
SearchResult choose(VectorQuantizeImpl& vq, const at::Tensor& projected, const at::Tensor& tokens,
                    const std::optional<at::Tensor>& mask, const Request& request,
                    const SearchOptions& options = {});

}  // namespace torchvq::detail
