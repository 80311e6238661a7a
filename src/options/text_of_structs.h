// Options that are not numbers or names: their text only says whether they are given.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <torch/nn/modules/container/any.h>
#include <torch/types.h>

#include <torchvq/options/hierarchical_vq.h>
#include <torchvq/options/residual_vq.h>
#include <torchvq/options/vector_quantize.h>

#include "options/text.h"

namespace torchvq::detail {

/// "None" removes the module; any other text sets a placeholder with no effect, so
/// that checks see a module.
template <>
struct OptionText<torch::nn::AnyModule> {
  static std::string kind() { return "a module or None"; }
  static bool read(const std::string& text, torch::nn::AnyModule& field);
  static std::string write(const torch::nn::AnyModule& module) {
    return module.is_empty() ? "None" : "given";
  }
};

/// The same for an optimizer, whose placeholder throws if it is called.
template <>
struct OptionText<CodebookOptimizer> {
  static std::string kind() { return "a function or None"; }
  static bool read(const std::string& text, CodebookOptimizer& field);
  static std::string write(const CodebookOptimizer& make) { return make ? "given" : "None"; }
};

using TensorFunction = std::function<torch::Tensor(torch::Tensor)>;

/// The same for a function, whose placeholder has no effect.
template <>
struct OptionText<TensorFunction> {
  static std::string kind() { return "a function or None"; }
  static bool read(const std::string& text, TensorFunction& field);
  static std::string write(const TensorFunction& function) { return function ? "given" : "None"; }
};

template <>
struct OptionText<std::vector<torch::Dtype>> {
  static std::string kind() { return "a list of dtypes"; }
  static bool read(const std::string& text, std::vector<torch::Dtype>& field);
  static std::string write(const std::vector<torch::Dtype>& dtypes);
};

template <>
struct OptionText<CodebookSizes> {
  static std::string kind() { return "an integer of 64 bits or a list of them"; }
  static bool read(const std::string& text, CodebookSizes& field);
  static std::string write(const CodebookSizes& sizes) {
    return sizes.each ? option_text(sizes.sizes) : option_text(sizes.sizes[0]);
  }
};

/// For each scale a number or a list of numbers.
template <>
struct OptionText<ScaleSizes> {
  static std::string kind() { return "a list of integers, or of lists of them"; }
  static bool read(const std::string& text, ScaleSizes& field);
  static std::string write(const ScaleSizes& scales);
};

}  // namespace torchvq::detail
