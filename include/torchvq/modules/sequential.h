// Sequential: a quantizer among other modules, as one module.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <ostream>
#include <tuple>
#include <type_traits>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/pimpl.h>

#include <torchvq/modules/checked_load.h>
#include <torchvq/modules/random_projection_quantizer.h>

namespace torchvq {

namespace detail {

/// The entry of a quantizer's result that is the input of the modules behind it.
template <typename Result>
  requires requires(Result& result) { result.quantized; }
torch::Tensor& output_of(Result& result) {
  return result.quantized;
}
template <typename Result>
  requires requires(Result& result) { result.one_hot; }
torch::Tensor& output_of(Result& result) {
  return result.one_hot;
}
template <typename Result>
  requires requires(Result& result) { result.reconstructed; }
torch::Tensor& output_of(Result& result) {
  return result.reconstructed;
}

/// Quantizers return structs; RandomProjectionQuantizer returns only indices, so no module can
/// follow it.
template <typename Module>
concept HasNoOutput = std::same_as<Module, RandomProjectionQuantizer>;
template <typename Module>
concept HasOutput = requires(Module& module, const torch::Tensor& x) {
  requires requires(decltype(module->forward(x)) result) { output_of(result); };
};
template <typename Module>
concept Quantizer = HasNoOutput<Module> || HasOutput<Module>;

}  // namespace detail

/// Modules in sequence, exactly one of which is a quantizer. The quantizer gets the output of the
/// modules before it, and the further arguments of the call. The result is that of the quantizer,
/// with its quantized output passed through the modules behind it.
///
/// Gradient, dtypes, masks, ranks, empty input, errors: those of the modules.
/// Parity   vector-quantize-pytorch, class Sequential; the same state names ("fns.0.weight")
///
/// Example:
/// ```
/// torchvq::Sequential model(torch::nn::Linear(16, 32),
///                           torchvq::VectorQuantize(torchvq::VectorQuantizeOptions(32)),
///                           torch::nn::Linear(32, 16));
/// auto output = model(torch::randn({1, 1024, 16}));  // a VectorQuantizeOutput
/// ```
template <typename... Modules>
class SequentialImpl : public CheckedLoad<SequentialImpl<Modules...>> {
  static_assert((0 + ... + (detail::Quantizer<Modules> ? 1 : 0)) == 1,
                "Sequential: expected exactly one quantizer among the modules");

 public:
  explicit SequentialImpl(Modules... modules)
      : CheckedLoad<SequentialImpl>("torchvq::Sequential"), modules_(std::move(modules)...) {
    auto list = this->register_module("fns", torch::nn::ModuleList());
    const auto add = [&](std::shared_ptr<torch::nn::Module> module) {
      list->push_back(std::move(module));
    };
    std::apply([&](auto&... each) { (add(each.ptr()), ...); }, modules_);
  }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override {
    auto copy = std::apply(
        [&](const auto&... each) {
          return std::make_shared<SequentialImpl>(cloned(each, device)...);
        },
        modules_);
    const auto from = this->modules(), to = copy->modules();
    // Parents come first, so that a child with another mode keeps it.
    for (size_t i = 0; i < from.size(); ++i) to[i]->train(from[i]->is_training());
    return copy;
  }

  /// Does nothing: the modules are given.
  void reset() override {}

  void pretty_print(std::ostream& stream) const override { stream << "torchvq::Sequential"; }

  /// @param x     the input of the first module.
  /// @param call  further arguments of the quantizer's forward.
  template <typename... Call>
  auto forward(const torch::Tensor& x, Call&&... call) {
    return before<0>(x, std::forward<Call>(call)...);
  }

  /// The module that quantizes.
  auto& quantizer() { return std::get<place()>(modules_); }

 private:
  static constexpr size_t place() {
    constexpr std::array<bool, sizeof...(Modules)> quantizes{detail::Quantizer<Modules>...};
    return static_cast<size_t>(std::find(quantizes.begin(), quantizes.end(), true) -
                               quantizes.begin());
  }

  template <typename Module>
  static Module cloned(const Module& module, const std::optional<torch::Device>& device) {
    return Module(std::dynamic_pointer_cast<typename Module::ContainedType>(module->clone(device)));
  }

  template <size_t index, typename... Call>
  auto before(const torch::Tensor& x, Call&&... call) {
    auto& module = std::get<index>(modules_);
    if constexpr (index < place()) {
      return before<index + 1>(module->forward(x), std::forward<Call>(call)...);
    } else {
      auto result = module->forward(x, std::forward<Call>(call)...);
      if constexpr (index + 1 < sizeof...(Modules)) {
        static_assert(!detail::HasNoOutput<std::decay_t<decltype(module)>>,
                      "Sequential: expected RandomProjectionQuantizer to be the last module");
        auto& output = detail::output_of(result);
        output = behind<index + 1>(output);
      }
      return result;
    }
  }

  template <size_t index>
  torch::Tensor behind(const torch::Tensor& x) {
    if constexpr (index == sizeof...(Modules)) {
      return x;
    } else {
      return behind<index + 1>(std::get<index>(modules_)->forward(x));
    }
  }

  std::tuple<Modules...> modules_;
};

/// The handle of a SequentialImpl.
template <typename... Modules>
class Sequential : public torch::nn::ModuleHolder<SequentialImpl<Modules...>> {
 public:
  explicit Sequential(Modules... modules)
      : torch::nn::ModuleHolder<SequentialImpl<Modules...>>(
            std::make_shared<SequentialImpl<Modules...>>(std::move(modules)...)) {}

  /// Calls forward(); ModuleHolder's operator() cannot call a forward that is a template.
  template <typename... Call>
  auto operator()(Call&&... call) {
    return (*this)->forward(std::forward<Call>(call)...);
  }
};

}  // namespace torchvq
