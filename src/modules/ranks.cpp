#include "modules/ranks.h"

#include <torchvq/distributed/replicas.h>

#include "distributed/group.h"

namespace torchvq::detail {
namespace {

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

std::string joined_signature(const std::vector<Codebook>& codebooks) {
  std::string signature;
  for (const auto& codebook : codebooks) {
    signature += (signature.empty() ? "" : "; ") + codebook->signature();
  }
  return signature;
}

void handshake(const std::vector<Codebook>& codebooks, const Ranks& ranks) {
  if (ranks.alone()) {
    return;
  }
  std::vector<at::Tensor> state;
  distributed::HandshakeOptions options;
  static_cast<distributed::SyncOptions&>(options) = ranks;
  options.handle = codebooks[0]->handle();
  for (const auto& codebook : codebooks) {
    append(state, codebook->replicated_state());
  }
  options.signature = joined_signature(codebooks) + "; reduction " + ranks.reduction;
  distributed::handshake_(state, options);
}

}  // namespace torchvq::detail
