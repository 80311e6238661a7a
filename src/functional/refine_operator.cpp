// The operator for refine_heads().
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/tensor.h>
#include <torch/library.h>

#include "detail/no_gradient.h"
#include "detail/residual_arguments.h"
#include "functional/refine_heads.h"
#include "ops/capture.h"

namespace torchvq::functional {
namespace {

using RefinedTensors = std::tuple<std::vector<at::Tensor>, at::Tensor, at::Tensor>;

void check_refined(const at::Tensor& x, at::TensorList codebooks,
                   const std::optional<at::Tensor>& mask, const std::string& label) {
  detail::check_residual_arguments(label.c_str(), x, codebooks, std::nullopt, mask);
  // Each head refits its own codes.
  for (const auto& codebook : codebooks) detail::check_codebook_of(label.c_str(), codebook, x);
}

RefinedTensors tensors_of(RefinedHeads refined, const at::Tensor& x) {
  std::vector<double> errors;
  std::vector<int64_t> counts;
  for (const auto& head : refined.heads) {
    errors.insert(errors.end(), {head.error_before, head.error_after});
    counts.insert(counts.end(), {head.vectors, head.iterations});
  }
  return {std::move(refined.codebooks),
          at::tensor(errors, at::kDouble).view({-1, 2}).to(x.device()),
          at::tensor(counts, at::kLong).view({-1, 2}).to(x.device())};
}

RefinedTensors refine_op(const at::Tensor& x, at::TensorList codebooks,
                         const std::optional<at::Tensor>& mask, int64_t beam, int64_t iterations,
                         double tolerance, double noise, int64_t seed, double ridge,
                         at::ArrayRef<double> weights, int64_t memory, std::string_view group_name,
                         std::string_view label) {
  const auto options = RefineCodebooksOptions()
                           .beam(beam)
                           .iterations(iterations)
                           .tolerance(tolerance)
                           .noise(noise)
                           .seed(seed)
                           .ridge(ridge)
                           .weights(weights.vec())
                           .memory(memory)
                           .label(std::string(label));
  check_refined(x, codebooks, mask, options.label());
  return tensors_of(refine_heads(x, codebooks, mask, options, std::string(group_name)), x);
}

RefinedTensors refine_meta(const at::Tensor& x, at::TensorList codebooks,
                           const std::optional<at::Tensor>& mask, int64_t /*beam*/,
                           int64_t /*iterations*/, double /*tolerance*/, double /*noise*/,
                           int64_t /*seed*/, double /*ridge*/, at::ArrayRef<double> /*weights*/,
                           int64_t /*memory*/, std::string_view /*group_name*/,
                           std::string_view label) {
  check_refined(x, codebooks, mask, std::string(label));
  std::vector<at::Tensor> levels;
  for (const auto& codebook : codebooks) {
    levels.push_back(codebook.new_empty_symint(codebook.sym_sizes()));
  }
  const c10::SymInt two(2);
  return {std::move(levels),
          x.new_empty_symint({x.sym_size(0), two}, x.options().dtype(at::kDouble)),
          x.new_empty_symint({x.sym_size(0), two}, x.options().dtype(at::kLong))};
}

}  // namespace
}  // namespace torchvq::functional

// x (H, T, D), codebooks Q of (H, K_n, D) -> refined codebooks with their dtypes; errors (H, 2)
// float64: the sum of squares before and after; counts (H, 2) int64: tokens and refits.
TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def(
      "refine_codebooks(Tensor x, Tensor[] codebooks, *, Tensor? mask=None, int beam=5, "
      "int iterations=10, float tolerance=1e-3, float noise=0., int seed=0, float ridge=8., "
      "float[] weights=[], int memory=1073741824, str group_name='', "
      "str label='refine_codebooks') -> (Tensor[] codebooks, Tensor errors, Tensor counts)",
      torchvq::detail::waits());
}

TORCH_LIBRARY_IMPL(torchvq, CompositeExplicitAutograd, m) {
  m.impl("refine_codebooks", torchvq::functional::refine_op);
}

TORCH_LIBRARY_IMPL(torchvq, Meta, m) {
  m.impl("refine_codebooks", torchvq::functional::refine_meta);
}

TORCH_LIBRARY_IMPL(torchvq, Autograd, m) {
  m.impl("refine_codebooks",
         torch::CppFunction::makeFromBoxedFunction<&torchvq::detail::run_without_gradient>());
}
