#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <torch/library.h>
#include <torchvq/functional/layout.h>

#include "detail/checks.h"
#include "detail/readable.h"
#include "detail/transposed.h"

namespace torchvq::functional {
namespace {

using c10::SymInt;
using Sizes = std::vector<SymInt>;

constexpr int64_t kFilledBytesPerTask = 65536;

/// The position axes of an input of this shape: all except batch and features.
Sizes position_sizes(c10::SymIntArrayRef sizes, bool channel_first) {
  TORCH_CHECK_VALUE(sizes.size() >= 2,
                    "unpack_positions: expected x to have at least 2 dimensions (B, D), but got ",
                    "shape ", sizes);
  const auto first = channel_first ? 2 : 1;
  const auto last = channel_first ? sizes.size() : sizes.size() - 1;
  return Sizes(sizes.begin() + first, sizes.begin() + last);
}

void check_heads(const char* op, int64_t heads) {
  TORCH_CHECK_VALUE(heads >= 1, op, ": expected heads to be at least 1, but got ", heads);
}

}  // namespace

at::Tensor pack_tokens(const at::Tensor& x, bool channel_first) {
  detail::check_defined("pack_tokens", "x", x);
  TORCH_CHECK_VALUE(x.dim() >= 2,
                    "pack_tokens: expected x to have at least 2 dimensions (B, D), but got shape ",
                    x.sym_sizes());
  if (x.dim() == 2) {
    return x.unsqueeze(1);
  }
  if (channel_first) {
    return detail::transposed(x.flatten(2));
  }
  return x.dim() == 3 ? x : x.flatten(1, -2);
}

at::Tensor unpack_tokens(const at::Tensor& tokens, const at::Tensor& x, bool channel_first) {
  const auto sizes = x.sym_sizes();
  if (!channel_first || sizes.size() == 2) return unpack_positions(tokens, sizes, channel_first);
  if (tokens.dim() == 3 && detail::is_readable(tokens) && detail::needs_gradient(tokens) &&
      detail::is_readable(x) && x.is_contiguous()) {
    auto shape = x.sizes().vec();
    shape[1] = tokens.size(2);
    return detail::transposed(tokens).reshape(shape);
  }
  return unpack_positions(tokens, sizes, channel_first).movedim(-1, 1);
}

at::Tensor unpack_positions(const at::Tensor& values, c10::SymIntArrayRef sizes,
                            bool channel_first) {
  detail::check_defined("unpack_positions", "values", values);
  if (sizes.size() == 2) {
    return values.squeeze(1);
  }
  Sizes shape{sizes[0]};
  const auto positions = position_sizes(sizes, channel_first);
  shape.insert(shape.end(), positions.begin(), positions.end());
  for (int64_t axis = 2; axis < values.dim(); ++axis) {
    shape.push_back(values.sym_size(axis));
  }
  return values.reshape_symint(shape);
}

at::Tensor split_heads(const at::Tensor& tokens, int64_t heads, bool separate) {
  detail::check_rank("split_heads", "tokens", tokens, 3, "(B, N, heads * D)");
  check_heads("split_heads", heads);
  const SymInt rows = tokens.sym_size(0) * tokens.sym_size(1);
  const SymInt dim = tokens.sym_size(2) / heads;
  TORCH_CHECK_VALUE(dim * heads == tokens.sym_size(2),
                    "split_heads: expected the feature size to be a multiple of ", heads,
                    " heads, but got shape ", tokens.sym_sizes());
  // With one head both orders are the same, and a transposition more is a node more in the graph.
  if (!separate || heads == 1) {
    return tokens.reshape_symint({1, rows * heads, dim});
  }
  return tokens.reshape_symint({rows, heads, dim}).transpose(0, 1);
}

at::Tensor merge_heads(const at::Tensor& values, SymInt batch, SymInt tokens, int64_t heads,
                       bool separate) {
  detail::check_defined("merge_heads", "values", values);
  check_heads("merge_heads", heads);
  Sizes shape{batch, tokens, heads};
  for (int64_t axis = 2; axis < values.dim(); ++axis) {
    shape.push_back(values.sym_size(axis));
  }
  // Contiguous, because users call view() on indices.
  return (separate ? values.transpose(0, 1).contiguous() : values).reshape_symint(shape);
}

at::Tensor split_mask(const at::Tensor& mask, int64_t heads, bool separate) {
  detail::check_defined("split_mask", "mask", mask);
  check_heads("split_mask", heads);
  const SymInt rows = mask.sym_size(0) * mask.sym_size(1);
  if (separate) {
    return mask.reshape_symint({1, rows}).expand_symint({heads, rows});
  }
  return mask.unsqueeze(-1).expand_symint({-1, -1, heads}).reshape_symint({1, rows * heads});
}

at::Tensor split_indices(const at::Tensor& indices, int64_t heads, bool separate) {
  detail::check_defined("split_indices", "indices", indices);
  check_heads("split_indices", heads);
  if (heads == 1) {
    return indices.flatten().unsqueeze(0);
  }
  TORCH_CHECK_VALUE(indices.dim() >= 1 && indices.sym_size(-1) == heads,
                    "split_indices: expected indices to have ", heads,
                    " heads on the last axis, but got shape ", indices.sym_sizes());
  return separate ? indices.flatten(0, -2).transpose(0, 1) : indices.flatten().unsqueeze(0);
}

namespace {

/// Checks a mask of tokens whose last `features` axes it lacks.
void check_token_mask(const char* op, const at::Tensor& mask, const at::Tensor& tokens,
                      int64_t features) {
  detail::check_defined(op, "mask", mask);
  TORCH_CHECK_TYPE(mask.scalar_type() == at::kBool, op, ": expected mask to be bool, but got ",
                   mask.scalar_type());
  const bool fits = mask.dim() >= 1 && mask.dim() + features == tokens.dim() &&
                    mask.sym_sizes() == tokens.sym_sizes().slice(0, mask.dim());
  TORCH_CHECK_VALUE(fits, op, ": expected mask to have one value per token, but got shape ",
                    mask.sym_sizes(), " for tokens of shape ", tokens.sym_sizes());
}

/// Whether tokens (*, D) are copied faster as rows than element by element.
bool are_rows(const at::Tensor& tokens, const at::Tensor& mask) {
  // First, because a comparison of symbolic sizes would bind a graph to them.
  return detail::is_plain(tokens) && detail::is_plain(mask) && mask.scalar_type() == at::kBool &&
         mask.dim() + 1 == tokens.dim() &&
         mask.sizes() == tokens.sizes().slice(0, static_cast<size_t>(mask.dim()));
}

/// The rows of tokens (*, D), zeros where the mask (*) is False; the tokens themselves where it is
/// True everywhere.
at::Tensor masked_rows(const at::Tensor& tokens, const at::Tensor& mask) {
  const auto* real = mask.const_data_ptr<bool>();
  if (std::all_of(real, real + mask.numel(), [](bool own) { return own; })) return tokens;
  auto filled = at::empty(tokens.sizes(), tokens.options().requires_grad(false));
  const auto bytes = static_cast<size_t>(tokens.size(-1)) * tokens.element_size();
  const auto* from = static_cast<const char*>(tokens.const_data_ptr());
  auto* to = static_cast<char*>(filled.mutable_data_ptr());
  const int64_t grain = 1 + kFilledBytesPerTask / (static_cast<int64_t>(bytes) + 1);
  at::parallel_for(0, mask.numel(), grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const auto place = static_cast<size_t>(row) * bytes;
      if (real[row]) {
        std::memcpy(to + place, from + place, bytes);
      } else {
        std::memset(to + place, 0, bytes);
      }
    }
  });
  return filled;
}

}  // namespace

at::Tensor fill_masked(const at::Tensor& tokens, const at::Tensor& mask) {
  detail::check_defined("fill_masked", "tokens", tokens);
  check_token_mask("fill_masked", mask, tokens, 1);
  if (are_rows(tokens, mask)) return masked_rows(tokens, mask);
  return tokens.masked_fill(mask.logical_not().unsqueeze(-1), 0);
}

at::Tensor fill_padding(const at::Tensor& output, const at::Tensor& mask,
                        const std::optional<at::Tensor>& padding) {
  detail::check_defined("fill_padding", "output", output);
  const bool candidates = output.dim() == 4;
  check_token_mask("fill_padding", mask, output, candidates ? 2 : 1);
  if (!padding && are_rows(output, mask)) return masked_rows(output, mask);
  const auto feature_mask = candidates ? mask.unsqueeze(-1).unsqueeze(-1) : mask.unsqueeze(-1);
  if (!padding) {
    return output.masked_fill(feature_mask.logical_not(), 0);
  }
  return at::where(feature_mask, output, candidates ? padding->unsqueeze(2) : *padding);
}

at::Tensor lens_to_mask(const at::Tensor& lens, SymInt length) {
  detail::check_rank("lens_to_mask", "lens", lens, 1, "(B,)");
  TORCH_CHECK_TYPE(at::isIntegralType(lens.scalar_type(), /*includeBool=*/false),
                   "lens_to_mask: expected lens to be integer, but got ", lens.scalar_type());
  TORCH_CHECK_VALUE(length >= 0, "lens_to_mask: expected length to be at least 0, but got ",
                    length);
  const auto position = at::arange(length, lens.options().dtype(at::kLong));
  auto whole = lens.to(at::kLong);
  // The cast wraps lengths from 2^63 on.
  if (lens.scalar_type() == at::kUInt64) whole = whole.masked_fill(whole.lt(0), INT64_MAX);
  return position.unsqueeze(0).lt(whole.unsqueeze(1));
}

namespace {

/// Converts (H, T, ...) to (B, N, heads, ...).
at::Tensor merge_heads_of(const at::Tensor& values, const at::Tensor& x,
                          const TokenLayout& layout) {
  SymInt tokens = 1;
  for (const auto& size : position_sizes(x.sym_sizes(), layout.channel_first())) tokens *= size;
  return merge_heads(values, x.sym_size(0), tokens, layout.heads(), layout.separate());
}

/// Whether tokens of one codebook differ from x only in shape.
bool only_reshapes(const TokenLayout& layout) {
  return layout.heads() == 1 && !layout.channel_first();
}

}  // namespace

SplitTokens split_tokens(const at::Tensor& x, const std::optional<at::Tensor>& mask,
                         const TokenLayout& layout) {
  const auto packed = pack_tokens(x, layout.channel_first());
  // Padding may hold anything, including NaN; zeros keep it out of every gradient.
  const auto filled = mask ? fill_masked(packed, *mask) : packed;
  SplitTokens split{packed, filled, split_heads(filled, layout.heads(), layout.separate()), {}};
  if (mask) split.mask = split_mask(*mask, layout.heads(), layout.separate());
  return split;
}

at::Tensor restore_tokens(const at::Tensor& codes, const at::Tensor& x,
                          const std::optional<at::Tensor>& mask, const TokenLayout& layout) {
  if (!mask && codes.dim() == 3 && only_reshapes(layout)) {
    return codes.reshape_symint(x.sym_sizes()).to(x.scalar_type());
  }
  auto output = merge_heads_of(codes, x, layout);
  // (B, N, heads, D) to (B, N, heads * D); with candidates (B, N, 1, k, D) to (B, N, k, D).
  output = (codes.dim() == 3 ? output.flatten(2) : output.squeeze(2)).to(x.scalar_type());
  if (mask) {
    const auto padding = layout.zeros_for_masked()
                             ? std::nullopt
                             : std::optional(pack_tokens(x, layout.channel_first()));
    output = fill_padding(output, *mask, padding);
  }
  return unpack_tokens(output, x, layout.channel_first());
}

at::Tensor restore_positions(const at::Tensor& values, const at::Tensor& x,
                             const TokenLayout& layout) {
  if (values.dim() == 2 && only_reshapes(layout)) {
    return values.reshape_symint(x.sym_sizes().slice(0, x.dim() - 1));
  }
  auto merged = merge_heads_of(values, x, layout);
  if (layout.heads() == 1) merged = merged.squeeze(2);
  return unpack_positions(merged, x.sym_sizes(), layout.channel_first());
}

namespace {

// Operators take x and not its sizes, because torch.jit.trace refuses lists of symbolic sizes.
at::Tensor unpack_positions_op(const at::Tensor& values, const at::Tensor& x, bool channel_first) {
  return unpack_positions(values, x.sym_sizes(), channel_first);
}

at::Tensor restore_tokens_op(const at::Tensor& codes, const at::Tensor& x,
                             const std::optional<at::Tensor>& mask, int64_t heads, bool separate,
                             bool channel_first, bool zeros_for_masked) {
  return restore_tokens(codes, x, mask,
                        TokenLayout()
                            .heads(heads)
                            .separate(separate)
                            .channel_first(channel_first)
                            .zeros_for_masked(zeros_for_masked));
}

at::Tensor restore_positions_op(const at::Tensor& values, const at::Tensor& x, int64_t heads,
                                bool separate, bool channel_first) {
  return restore_positions(
      values, x, TokenLayout().heads(heads).separate(separate).channel_first(channel_first));
}

}  // namespace

}  // namespace torchvq::functional

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  using namespace torchvq::functional;
  m.def("pack_tokens(Tensor x, bool channel_first=False) -> Tensor", TORCH_FN(pack_tokens));
  m.def("unpack_tokens(Tensor tokens, Tensor x, bool channel_first=False) -> Tensor",
        TORCH_FN(unpack_tokens));
  m.def("unpack_positions(Tensor values, Tensor x, bool channel_first=False) -> Tensor",
        TORCH_FN(unpack_positions_op));
  m.def("split_heads(Tensor tokens, int heads, bool separate) -> Tensor", TORCH_FN(split_heads));
  m.def(
      "merge_heads(Tensor values, SymInt batch, SymInt tokens, int heads, bool separate) -> Tensor",
      TORCH_FN(merge_heads));
  m.def("split_mask(Tensor mask, int heads, bool separate) -> Tensor", TORCH_FN(split_mask));
  m.def("split_indices(Tensor indices, int heads, bool separate) -> Tensor",
        TORCH_FN(split_indices));
  m.def("fill_masked(Tensor tokens, Tensor mask) -> Tensor", TORCH_FN(fill_masked));
  m.def("fill_padding(Tensor output, Tensor mask, Tensor? padding=None) -> Tensor",
        TORCH_FN(fill_padding));
  m.def(
      "restore_tokens(Tensor codes, Tensor x, *, Tensor? mask=None, int heads=1, "
      "bool separate=False, bool channel_first=False, bool zeros_for_masked=True) -> Tensor",
      TORCH_FN(restore_tokens_op));
  m.def(
      "restore_positions(Tensor values, Tensor x, *, int heads=1, bool separate=False, "
      "bool channel_first=False) -> Tensor",
      TORCH_FN(restore_positions_op));
  m.def("lens_to_mask(Tensor lens, SymInt length) -> Tensor", TORCH_FN(lens_to_mask));
}
