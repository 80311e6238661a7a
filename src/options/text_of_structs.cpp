#include "options/text_of_structs.h"

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/optimizer.h>

namespace torchvq::detail {
namespace {

constexpr std::string_view kDtypePrefix = "torch.";

std::shared_ptr<torch::optim::Optimizer> no_optimizer(
    const std::vector<torch::Tensor>& /*parameters*/) {
  TORCH_CHECK_VALUE(false, "set_option: expected in_place_codebook_optimizer to be set to a ",
                    "function, but got text");
  return nullptr;
}

}  // namespace

bool OptionText<torch::nn::AnyModule>::read(const std::string& text, torch::nn::AnyModule& field) {
  field = text == "None" ? torch::nn::AnyModule() : torch::nn::AnyModule(torch::nn::Identity());
  return true;
}

bool OptionText<CodebookOptimizer>::read(const std::string& text, CodebookOptimizer& field) {
  field = text == "None" ? CodebookOptimizer() : CodebookOptimizer(no_optimizer);
  return true;
}

bool OptionText<TensorFunction>::read(const std::string& text, TensorFunction& field) {
  field = nullptr;
  if (text != "None") field = [](torch::Tensor tensor) { return tensor; };
  return true;
}

bool OptionText<std::vector<torch::Dtype>>::read(const std::string& text,
                                                 std::vector<torch::Dtype>& field) {
  const auto words = split_list(text);
  if (!words) return false;
  const auto& known = c10::getStringToDtypeMap();
  std::vector<torch::Dtype> dtypes;
  for (const auto& word : *words) {
    const auto found =
        known.find(word.starts_with(kDtypePrefix) ? word.substr(kDtypePrefix.size()) : "");
    if (found == known.end()) return false;
    dtypes.push_back(found->second);
  }
  field = std::move(dtypes);
  return true;
}

std::string OptionText<std::vector<torch::Dtype>>::write(const std::vector<torch::Dtype>& dtypes) {
  std::vector<std::string> words;
  for (const auto dtype : dtypes) {
    words.push_back(std::string(kDtypePrefix).append(c10::getDtypeNames(dtype).first));
  }
  return join_list(words);
}

bool OptionText<CodebookSizes>::read(const std::string& text, CodebookSizes& field) {
  int64_t size = 0;
  if (OptionText<int64_t>::read(text, size)) {
    field = CodebookSizes(size);
    return true;
  }
  std::vector<int64_t> sizes;
  if (!OptionText<std::vector<int64_t>>::read(text, sizes)) return false;
  field = CodebookSizes(std::move(sizes));
  return true;
}

bool OptionText<ScaleSizes>::read(const std::string& text, ScaleSizes& field) {
  const auto words = split_list(text);
  if (!words) return false;
  std::vector<std::vector<int64_t>> scales;
  // Splitting at commas has also split inner lists; joins their parts again.
  std::string inside;
  for (const auto& word : *words) {
    inside += (inside.empty() ? "" : ", ") + word;
    const bool open = inside.front() == '[' || inside.front() == '(';
    if (open && inside.back() != ']' && inside.back() != ')') continue;
    std::vector<int64_t> sizes(1);
    const bool read = open ? OptionText<std::vector<int64_t>>::read(inside, sizes)
                           : OptionText<int64_t>::read(inside, sizes[0]);
    if (!read) return false;
    scales.push_back(std::move(sizes));
    inside.clear();
  }
  if (!inside.empty()) return false;
  field = ScaleSizes(std::move(scales));
  return true;
}

std::string OptionText<ScaleSizes>::write(const ScaleSizes& scales) {
  std::vector<std::string> words;
  for (const auto& sizes : scales.each) {
    words.push_back(sizes.size() == 1 ? option_text(sizes[0]) : option_text(sizes));
  }
  return join_list(words);
}

}  // namespace torchvq::detail
