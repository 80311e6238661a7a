#include "modules/layout.h"
#include "modules/indices.h"

#include <utility>

#include <torchvq/functional/layout.h>
#include <torchvq/options/vector_quantize.h>

#include "detail/checks.h"

namespace torchvq::detail {

namespace F = functional;
using OptionalTensor = std::optional<at::Tensor>;

Layout layout_of(const VectorQuantizeOptions& options, std::string owner) {
  return {.dim = options.dim(),
          .heads = options.heads(),
          .separate = options.separate_codebook_per_head(),
          .channel_first =
              options.accept_image_fmap() || options.accept_3d_fmap() || !options.channel_last(),
          .map_rank = options.accept_3d_fmap()      ? 5
                      : options.accept_image_fmap() ? 4
                                                    : 0,
          .owner = std::move(owner)};
}

F::TokenLayout token_layout(const VectorQuantizeOptions& options) {
  return F::TokenLayout()
      .heads(options.heads())
      .separate(options.separate_codebook_per_head())
      .channel_first(layout_of(options, "").channel_first)
      .zeros_for_masked(options.return_zeros_for_masked_padding());
}

void Layout::check_input(const at::Tensor& x, const char* name) const {
  check_input_floating(owner.c_str(), name, x);
  const auto* shape = map_rank == 5   ? "(B, dim, T, H, W)"
                      : map_rank == 4 ? "(B, dim, H, W)"
                                      : "(B, *, dim)";
  TORCH_CHECK_VALUE(x.dim() >= 2 && (map_rank == 0 || x.dim() == 2 || x.dim() == map_rank), owner,
                    ": expected ", name, " to have shape ", shape, ", but got shape ", x.sizes());
  TORCH_CHECK_VALUE(x.size(channel_first ? 1 : -1) == dim, owner, ": expected ", name, " to have ",
                    dim, " features (dim) on ", channel_first ? "axis 1" : "the last axis",
                    ", but got shape ", x.sizes());
}

std::vector<int64_t> Layout::token_shape(const at::Tensor& x) const {
  auto shape = x.sizes().vec();
  shape.erase(channel_first ? shape.begin() + 1 : shape.end() - 1);
  return shape;
}

OptionalTensor Layout::token_mask(const at::Tensor& x, const OptionalTensor& mask,
                                  const OptionalTensor& lens) const {
  TORCH_CHECK_VALUE(!mask || !lens, owner, ": expected mask or lens to be given, but got both");
  const auto shape = token_shape(x);
  if (lens) {
    check_defined(owner.c_str(), "lens", *lens);
    TORCH_CHECK_VALUE(shape.size() == 2 && lens->dim() == 1 && lens->size(0) == x.size(0), owner,
                      ": expected lens to have one length per sequence of x, but got shape ",
                      lens->sizes(), " for x of shape ", x.sizes());
    return F::lens_to_mask(*lens, shape[1]);
  }
  if (!mask) {
    return std::nullopt;
  }
  check_dtype(owner.c_str(), "mask", *mask, at::kBool);
  const at::IntArrayRef expected(shape);
  TORCH_CHECK_VALUE(mask->sizes() == expected, owner, ": expected mask to have shape ", expected,
                    ", but got ", mask->sizes());
  return mask->dim() == 1 ? mask->unsqueeze(1) : mask->flatten(1);
}

OptionalTensor Layout::mask_of_items(const at::Tensor& x, const OptionalTensor& mask) const {
  if (!mask || x.dim() < 3) return token_mask(x, mask, std::nullopt);
  check_dtype(owner.c_str(), "mask", *mask, at::kBool);
  const auto shape = token_shape(x);
  const auto positions = c10::multiply_integers(shape.begin() + 1, shape.end());
  if (mask->sizes() == at::IntArrayRef({shape[0], positions})) {
    return token_mask(x, mask->reshape(shape), std::nullopt);
  }
  if (mask->sizes() != x.sizes().slice(0, 1)) return token_mask(x, mask, std::nullopt);
  std::vector<int64_t> column(shape.size(), 1);
  column[0] = shape[0];
  return token_mask(x, mask->reshape(column).expand(shape), std::nullopt);
}

at::Tensor Layout::pack(const at::Tensor& x, const OptionalTensor& mask) const {
  const auto tokens = F::pack_tokens(x, channel_first);
  // Padding may hold anything, including NaN; zeros keep it out of every gradient.
  return mask ? F::fill_masked(tokens, *mask) : tokens;
}

at::Tensor Layout::unpack(const at::Tensor& tokens, const at::Tensor& x) const {
  return F::unpack_tokens(tokens, x, channel_first);
}

at::Tensor Layout::split_heads(const at::Tensor& tokens) const {
  return F::split_heads(tokens, heads, separate);
}

OptionalTensor Layout::split_mask(const OptionalTensor& mask) const {
  return mask ? OptionalTensor(F::split_mask(*mask, heads, separate)) : std::nullopt;
}

at::Tensor Layout::split_indices(const at::Tensor& indices) const {
  return F::split_indices(as_int64(owner, indices), heads, separate);
}

at::Tensor Layout::merge_heads(const at::Tensor& values, int64_t batch, int64_t tokens) const {
  return F::merge_heads(values, batch, tokens, heads, separate);
}

at::Tensor Layout::merge_features(const at::Tensor& values, int64_t batch, int64_t tokens) const {
  return merge_heads(values, batch, tokens).flatten(2);
}

at::Tensor Layout::restore_positions(const at::Tensor& values, const at::Tensor& x) const {
  return F::restore_positions(
      values, x, F::TokenLayout().heads(heads).separate(separate).channel_first(channel_first));
}

at::Tensor Layout::unpack_positions(const at::Tensor& values, const at::Tensor& x) const {
  return F::unpack_positions(values, x.sym_sizes(), channel_first);
}

at::Tensor Layout::join_heads(const at::Tensor& codes, at::IntArrayRef indices) const {
  auto shape = indices.vec();
  if (heads > 1) {
    shape.pop_back();
  }
  shape.push_back(codes.size(2) * heads);
  return (separate ? codes.transpose(0, 1) : codes).reshape(shape);
}

std::vector<int64_t> Layout::indices_shape(const at::Tensor& x) const {
  auto shape = token_shape(x);
  if (heads > 1) shape.push_back(heads);
  return shape;
}

at::Tensor Layout::place_features(const at::Tensor& values) const {
  // (B, dim) and (dim,) have no position axis.
  return channel_first && values.dim() > 2 ? values.movedim(-1, 1) : values;
}

}  // namespace torchvq::detail
