#include <torchvq/modules/state_dict.h>

#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include <torchvq/modules/codebook.h>
#include <torchvq/modules/hierarchical_vq.h>
#include <torchvq/modules/in_place_optimizer.h>
#include <torchvq/modules/lfq.h>
#include <torchvq/modules/sim_vq.h>
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

void add_tensors(const torch::nn::Module& module, const std::string& prefix, State& state) {
  for (const auto& item : module.named_parameters()) {
    state[prefix + item.key()] = item.value().detach();
  }
  for (const auto& item : module.named_buffers()) {
    state[prefix + item.key()] = item.value();
  }
}

/// A module that several levels of a stack share is registered once, so that an optimizer
/// updates it once; in Python's state dict it has a name under each level. Calls `use` with
/// these names and the modules.
template <typename Owner, typename Use>
void each_borrowed(torch::nn::Module& root, const Use& use) {
  for (const auto& [prefix, owner] : modules_of<Owner>(root)) {
    for (const auto& [name, module] : owner->borrowed_modules()) {
      const auto inside = prefix + name + ".";
      use(inside, *module);
      // A borrowed codebook may borrow a bridge from another group.
      const auto* codebook = dynamic_cast<const CodebookImpl*>(module.get());
      if (codebook == nullptr) continue;
      for (const auto& [inner, bridge] : codebook->borrowed_modules()) {
        use(inside + inner + ".", *bridge);
      }
    }
  }
}

State tensors_of(torch::nn::Module& module) {
  State state;
  add_tensors(module, "", state);
  const auto add = [&](const std::string& prefix, const torch::nn::Module& shared) {
    add_tensors(shared, prefix, state);
  };
  each_borrowed<VectorQuantizeImpl>(module, add);
  each_borrowed<CodebookImpl>(module, add);
  each_borrowed<SimVQImpl>(module, add);
  each_borrowed<LFQImpl>(module, add);
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

/// Whether a tensor is the generator of a module that draws random numbers, and not something else
/// of that name in a caller's module.
bool is_rng(const std::string& name, const at::Tensor& tensor) {
  return (name == "rng" || name.ends_with(".rng")) && tensor.scalar_type() == at::kLong &&
         tensor.sizes() == at::IntArrayRef{2};
}

/// Drops accumulated statistics from the state of other modules if these modules have none.
void drop_kept(torch::nn::Module& module, State& state) {
  const auto drop = [&](const std::string& prefix, const CodebookImpl& codebook) {
    if (codebook.keeps_statistics()) return;
    std::erase_if(state, [&](const auto& item) {
      return item.first.starts_with(prefix) &&
             CodebookImpl::is_kept_state(item.first.substr(prefix.size()));
    });
  };
  for (const auto& [prefix, codebook] : modules_of<CodebookImpl>(module)) drop(prefix, *codebook);
  each_borrowed<VectorQuantizeImpl>(module, [&](const std::string& prefix, const auto& shared) {
    if (const auto* codebook = dynamic_cast<const CodebookImpl*>(&shared)) drop(prefix, *codebook);
  });
}

/// Drops a state that codebooks had before version 0.1 and nothing reads.
void drop_retired(State& state) {
  std::erase_if(state, [](const auto& item) { return item.first.ends_with("_codebook.cooldown"); });
}

/// For each codebook, the optional state that the checkpoint lacks.
using Missing = std::vector<std::pair<CodebookImpl*, std::vector<std::string>>>;

/// Throws if other names are missing or unknown, or if shapes differ.
Missing check_names(torch::nn::Module& module, const State& own, const State& state) {
  Missing missing;
  auto lacking = own;
  for (const auto& [name, value] : state) {
    const auto target = lacking.find(name);
    TORCH_CHECK_VALUE(target != lacking.end(),
                      "load_state_dict: expected names that the module has, but got ", name);
    TORCH_CHECK_VALUE(value.defined() && value.layout() == at::kStrided && !value.is_meta() &&
                          !value.is_quantized() && !value.is_complex(),
                      "load_state_dict: expected ", name,
                      " to be a dense tensor of real numbers, but got ", value.toString());
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
  each_borrowed<VectorQuantizeImpl>(module, [&](const std::string& prefix, const auto& shared) {
    for (const auto& item : shared.named_buffers(/*recurse=*/false)) {
      if (CodebookImpl::is_optional_state(item.key())) {
        lacking.erase(prefix + item.key());
      }
    }
  });
  std::erase_if(lacking, [](const auto& item) { return is_rng(item.first, item.second); });
  TORCH_CHECK_VALUE(lacking.empty(), "load_state_dict: expected the state to have ",
                    lacking.begin()->first, ", but got a state without it");
  return missing;
}

}  // namespace

State state_dict(const torch::nn::Module& module) {
  // The module is only read; for a constant module, libtorch does not list the root itself.
  auto& root = const_cast<torch::nn::Module&>(module);
  auto state = tensors_of(root);
  for (const auto& [prefix, owner] : modules_of<InPlaceOptimizer>(root)) {
    for (const auto& [name, value] : owner->in_place_optimizer_state()) {
      state[std::string(prefix).append(kOptimizer).append(name)] = value;
    }
  }
  return state;
}

void load_state_dict(torch::nn::Module& module, const State& state) {
  const at::NoGradGuard no_grad;
  auto left = state;
  std::vector<std::pair<InPlaceOptimizer*, State>> optimizers;
  for (const auto& [prefix, owner] : modules_of<InPlaceOptimizer>(module)) {
    if (!owner->has_in_place_optimizer()) {
      continue;
    }
    optimizers.emplace_back(owner, take(left, prefix + std::string(kOptimizer)));
    owner->check_in_place_optimizer_state(optimizers.back().second);
  }
  drop_kept(module, left);
  drop_retired(left);
  const auto own = tensors_of(module);
  const auto missing = check_names(module, own, left);
  for (const auto& [name, tensor] : own) {
    const auto loaded = left.find(name);
    if (loaded != left.end()) {
      auto target = tensor;
      target.copy_(loaded->second);
    } else if (is_rng(name, tensor)) {
      tensor.select(0, 1).zero_();  // the seed drawn at construction stays
    }
  }
  for (const auto& [owner, values] : optimizers) {
    owner->load_in_place_optimizer_state(values);
  }
  for (const auto& [codebook, names] : missing) {
    codebook->state_loaded(names);
  }
  for (const auto& [prefix, quantizer] : modules_of<VectorQuantizeImpl>(module)) {
    quantizer->step_counts.reset();
  }
  for (const auto& [prefix, quantizer] : modules_of<HierarchicalVQImpl>(module)) {
    quantizer->step_counts.clear();
  }
}

}  // namespace torchvq
