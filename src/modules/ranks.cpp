#include "modules/ranks.h"

#include <algorithm>

#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>

#include <torchvq/distributed/replicas.h>
#include <torchvq/distributed/synced_code_statistics.h>
#include <torchvq/distributed/synced_replace_dead_codes_.h>
#include <torchvq/functional/codebook.h>
#include <torchvq/ops/code_statistics.h>
#include <torchvq/ops/replace_dead_codes_.h>

#include "distributed/group.h"

namespace torchvq::detail {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

void append(std::vector<at::Tensor>& to, const std::vector<at::Tensor>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

}  // namespace

std::string group_of(const VectorQuantizeImpl& vq) {
  const auto& options = vq.options;
  if (!options.sync_codebook().value_or(true)) {
    return "";
  }
  return options.process_group().value_or(distributed::default_group());
}

Ranks ranks_of(const VectorQuantizeImpl& vq, const std::string& owner) {
  const auto& options = vq.options;
  Ranks ranks;
  if (vq.is_training()) {
    ranks.group_name = group_of(vq);
  }
  if (!ranks.alone()) {
    ranks.label = owner + "(dim=" + std::to_string(options.dim()) +
                  ", codebook_size=" + std::to_string(options.codebook_size()) + ")";
    ranks.reduction = options.reduction();
  }
  return ranks;
}

void shake_hands(const std::vector<Codebook>& codebooks, const Ranks& ranks) {
  if (ranks.alone()) {
    return;
  }
  std::vector<at::Tensor> state;
  distributed::HandshakeOptions options;
  static_cast<distributed::SyncOptions&>(options) = ranks;
  options.handle = codebooks[0]->handle();
  for (const auto& codebook : codebooks) {
    append(state, codebook->replicated_state());
    options.signature += (options.signature.empty() ? "" : "; ") + codebook->signature();
  }
  distributed::handshake_(state, options);
}

void advance_rng(const at::Tensor& rng, const OptionalTensor& counts, const OptionalTensor& mask,
                 const at::Tensor& x, const Ranks& ranks) {
  if (counts) {
    functional::advance_rng_(rng, counts->gt(0));
  } else if (!ranks.alone()) {
    // Nothing was exchanged, so nobody knows of the others' tokens: all count.
    functional::advance_rng_(rng);
  } else if (x.size(1) > 0) {
    functional::advance_rng_(rng, mask);
  }
}

}  // namespace torchvq::detail
