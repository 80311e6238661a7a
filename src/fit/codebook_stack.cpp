#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>
#include <torchvq/fit/codebook_stack.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/residual_beam_search.h>
#include <torchvq/ops/residual_decode.h>
#include <torchvq/ops/residual_encode.h>

#include "functional/refit_codebooks.h"

namespace torchvq::fit {
namespace {

const std::vector<at::Tensor>& first_group(const CodebookStack& stack) {
  TORCH_CHECK_VALUE(!stack.groups.empty() && !stack.groups[0].empty(),
                    "CodebookStack: expected groups to hold at least one codebook, but got none");
  return stack.groups[0];
}

void check_stack(const CodebookStack& stack, const char* where) {
  TORCH_CHECK_VALUE(!stack.groups.empty() && !stack.groups[0].empty(), where,
                    ": expected stack to have at least one codebook, but got none");
  for (const auto& group : stack.groups) {
    TORCH_CHECK_VALUE(group.size() == stack.groups[0].size(), where, ": expected groups of ",
                      stack.groups[0].size(), " levels, as the first, but got ", group.size());
    for (const auto& codebook : group) {
      TORCH_CHECK_VALUE(codebook.defined() && codebook.dim() == 2 && codebook.size(0) >= 1 &&
                            codebook.size(1) == stack.group_dim(),
                        where, ": expected codebooks to have shape (K, D) of one D, but got ",
                        codebook.defined() ? c10::str(codebook.sizes()) : "an undefined tensor");
    }
  }
  TORCH_CHECK_VALUE(
      stack.metric == "euclidean" || (stack.metric == "cosine" && stack.columns() == 1), where,
      ": expected metric to be euclidean, or cosine for one codebook alone, but got ", stack.metric,
      " for ", stack.columns());
}

// The search of codes of several levels, used by all commands.
at::Tensor encode_group(const at::Tensor& x, const std::vector<at::Tensor>& levels, int64_t beam) {
  const auto rows = x.unsqueeze(0);
  const auto codebooks = functional::with_one_head(levels);
  if (beam == 1) return ops::residual_encode(rows, codebooks).indices[0];
  return ops::residual_beam_search(rows, codebooks, beam)[0];
}

at::Tensor decode_group(const at::Tensor& codes, const std::vector<at::Tensor>& levels) {
  return ops::residual_decode(codes.unsqueeze(0), functional::with_one_head(levels))[0];
}

}  // namespace

int64_t CodebookStack::group_dim() const { return first_group(*this)[0].size(1); }

int64_t CodebookStack::dim() const { return group_dim() * static_cast<int64_t>(groups.size()); }

int64_t CodebookStack::levels() const { return static_cast<int64_t>(first_group(*this).size()); }

int64_t CodebookStack::columns() const { return levels() * static_cast<int64_t>(groups.size()); }

const at::Tensor& CodebookStack::codebook(int64_t column) const {
  TORCH_CHECK_INDEX(column >= 0 && column < columns(),
                    "CodebookStack: expected column to be in [0, ", columns(), "), but got ",
                    column);
  const auto& group = groups[static_cast<size_t>(column / levels())];
  const auto level = static_cast<size_t>(column % levels());
  TORCH_CHECK_VALUE(level < group.size(), "CodebookStack: expected groups of ", levels(),
                    " levels, as the first, but got ", group.size());
  return group[level];
}

int64_t CodebookStack::paths(int64_t most) const {
  int64_t paths = 1;
  for (const auto& level : first_group(*this)) {
    if (level.size(0) > most / paths) return most;
    paths *= level.size(0);
  }
  return paths;
}

at::Tensor encode_stack(const at::Tensor& x, const CodebookStack& stack, int64_t beam) {
  check_stack(stack, "encode_stack");
  TORCH_CHECK_VALUE(beam >= 1, "encode_stack: expected beam to be at least 1, but got ", beam);
  TORCH_CHECK_VALUE(x.dim() == 2 && x.size(1) == stack.dim(),
                    "encode_stack: expected x to have shape (N, ", stack.dim(), "), but got ",
                    x.sizes());
  if (stack.columns() == 1) {
    const auto options = ops::NearestCodeOptions().metric(stack.metric);
    return ops::nearest_code(x, stack.codebook(0), options).indices.unsqueeze(1);
  }
  std::vector<at::Tensor> codes;
  for (size_t g = 0; g < stack.groups.size(); ++g) {
    const auto first = static_cast<int64_t>(g) * stack.group_dim();
    codes.push_back(encode_group(x.narrow(1, first, stack.group_dim()), stack.groups[g], beam));
  }
  return at::cat(codes, 1);
}

at::Tensor decode_stack(const at::Tensor& codes, const CodebookStack& stack) {
  check_stack(stack, "decode_stack");
  TORCH_CHECK_VALUE(codes.dim() == 2 && codes.size(1) == stack.columns(),
                    "decode_stack: expected codes to have shape (N, ", stack.columns(),
                    "), but got ", codes.sizes());
  std::vector<at::Tensor> parts;
  for (size_t g = 0; g < stack.groups.size(); ++g) {
    const auto first = static_cast<int64_t>(g) * stack.levels();
    parts.push_back(decode_group(codes.narrow(1, first, stack.levels()), stack.groups[g]));
  }
  return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
}

}  // namespace torchvq::fit
