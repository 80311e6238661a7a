#include "modules/ranks.h"

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>

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

Ranks ranks_of(const VectorQuantizeImpl& vq, const std::string& owner, int64_t dim) {
  return vq.is_training() ? sharing_ranks_of(vq, owner, dim) : Ranks();
}

Ranks sharing_ranks_of(const VectorQuantizeImpl& vq, const std::string& owner, int64_t dim) {
  const auto& options = vq.options;
  Ranks ranks;
  ranks.group_name = group_of(vq);
  if (!ranks.alone()) {
    ranks.label = owner + "(dim=" + std::to_string(dim) +
                  ", codebook_size=" + std::to_string(options.codebook_size()) + ")";
    ranks.reduction = options.reduction();
  }
  return ranks;
}

const VectorQuantizeImpl& synced_level(const std::vector<VectorQuantize>& levels) {
  const auto training = std::find_if(levels.begin(), levels.end(), [](const VectorQuantize& level) {
    return level->is_training();
  });
  return training == levels.end() ? *levels.front() : **training;
}

std::string joined_signature(const std::vector<Codebook>& codebooks) {
  // Levels of a stack mostly have the same options, and errors have little room.
  std::vector<std::pair<std::string, int64_t>> runs;
  for (const auto& codebook : codebooks) {
    auto text = codebook->signature();
    if (!runs.empty() && runs.back().first == text) {
      ++runs.back().second;
    } else {
      runs.emplace_back(std::move(text), 1);
    }
  }
  std::string signature;
  for (const auto& [text, count] : runs) {
    if (!signature.empty()) signature += "; ";
    if (count > 1) signature += std::to_string(count) + " levels of ";
    signature += text;
  }
  return signature;
}

std::string tokens_text(at::ScalarType dtype) {
  return dtype == at::kDouble ? "float64 tokens" : "float32 tokens";
}

at::Tensor on_device_of(const at::Tensor& tokens) {
  return at::empty({0}, tokens.options().dtype(at::kFloat));
}

void handshake(const std::vector<Codebook>& codebooks, const Ranks& ranks,
               const std::string& call) {
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
  options.signature = call + ", reduction " + ranks.reduction + ", " + joined_signature(codebooks);
  distributed::handshake_(state, options);
}

}  // namespace torchvq::detail
