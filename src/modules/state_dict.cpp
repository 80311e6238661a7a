#include <torchvq/modules/state_dict.h>

#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include <torchvq/modules/codebook.h>
#include <torchvq/modules/vector_quantize.h>

namespace torchvq {
namespace {

using State = std::map<std::string, torch::Tensor>;

constexpr std::string_view kOptimizer = "in_place_codebook_optimizer.";

template <typename Module>
std::vector<std::pair<std::string, Module*>> modules_of(torch::nn::Module& root) {
  std::vector<std::pair<std::string, Module*>> found;
  if (auto* module = dynamic_cast<Module*>(&root)) {
    found.emplace_back("", module);
  }
  for (const auto& item : root.named_modules("", /*include_self=*/false)) {
    if (auto* module = dynamic_cast<Module*>(item.value().get())) {
      found.emplace_back(item.key() + ".", module);
    }
  }
  return found;
}

State tensors_of(const torch::nn::Module& module) {
  State state;
  for (const auto& item : module.named_parameters()) {
    state[item.key()] = item.value().detach();
  }
  for (const auto& item : module.named_buffers()) {
    state[item.key()] = item.value();
  }
  return state;
}

/// Moves entries that begin with `prefix` from `state` to the result, without the prefix.
State take(State& state, const std::string& prefix) {
  State taken;
  for (auto item = state.lower_bound(prefix);
       item != state.end() && item->first.starts_with(prefix); item = state.erase(item)) {
    taken[item->first.substr(prefix.size())] = item->second;
  }
  return taken;
}

/// For each codebook the optional state that the checkpoint lacks; throws where other names are
/// missing or unknown, or shapes differ.
using Missing = std::vector<std::pair<CodebookImpl*, std::vector<std::string>>>;

Missing check_names(torch::nn::Module& module, const State& own, const State& state) {
  Missing missing;
  auto lacking = own;
  for (const auto& [name, value] : state) {
    const auto target = lacking.find(name);
    TORCH_CHECK_VALUE(target != lacking.end(),
                      "load_state_dict: expected names that the module has, but got ", name);
    TORCH_CHECK_VALUE(value.sizes() == target->second.sizes(), "load_state_dict: expected ", name,
                      " to have shape ", target->second.sizes(), ", but got ", value.sizes());
    lacking.erase(target);
  }
  for (const auto& [prefix, codebook] : modules_of<CodebookImpl>(module)) {
    missing.emplace_back(codebook, std::vector<std::string>());
    for (const auto& item : codebook->named_buffers(/*recurse=*/false)) {
      if (CodebookImpl::is_optional_state(item.key()) && lacking.erase(prefix + item.key()) > 0) {
        missing.back().second.push_back(item.key());
      }
    }
  }
  TORCH_CHECK_VALUE(lacking.empty(), "load_state_dict: expected ", lacking.begin()->first,
                    " to be in the state, but it is missing");
  return missing;
}

}  // namespace

State state_dict(const torch::nn::Module& module) {
  auto state = tensors_of(module);
  // Only reads; libtorch lists the modules of a constant one, but not the root as itself.
  for (const auto& [prefix, quantizer] :
       modules_of<VectorQuantizeImpl>(const_cast<torch::nn::Module&>(module))) {
    for (const auto& [name, value] : quantizer->in_place_optimizer_state()) {
      state[prefix + std::string(kOptimizer) + name] = value;
    }
  }
  return state;
}

void load_state_dict(torch::nn::Module& module, const State& state) {
  const at::NoGradGuard no_grad;
  auto left = state;
  std::vector<std::pair<VectorQuantizeImpl*, State>> optimizers;
  for (const auto& [prefix, quantizer] : modules_of<VectorQuantizeImpl>(module)) {
    if (!quantizer->has_in_place_optimizer()) {
      continue;
    }
    optimizers.emplace_back(quantizer, take(left, prefix + std::string(kOptimizer)));
    quantizer->check_in_place_optimizer_state(optimizers.back().second);
  }
  const auto own = tensors_of(module);
  const auto missing = check_names(module, own, left);
  for (const auto& [name, value] : left) {
    own.at(name).copy_(value);
  }
  for (const auto& [quantizer, values] : optimizers) {
    quantizer->load_in_place_optimizer_state(values);
  }
  for (const auto& [codebook, names] : missing) {
    codebook->state_loaded(names);
  }
}

}  // namespace torchvq
