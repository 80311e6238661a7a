// The scales of HierarchicalVQ from C++, and the sums of rows below them by the kernel of every
// instruction set.
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <torchvq/functional/hierarchical_quantize.h>
#include <torchvq/functional/scales.h>
#include <torchvq/ops/nearest_code.h>
#include <torchvq/ops/resample_scale.h>
#include <torchvq/ops/row_products.h>

#include "kernels/cpu/cpu_level.h"

namespace torchvq {
namespace {

using functional::HierarchicalQuantizeOptions;
using kernels::CpuLevel;

std::vector<c10::SymInt> symbolic(at::IntArrayRef sizes) { return {sizes.begin(), sizes.end()}; }

class ResampleScaleTest : public testing::TestWithParam<CpuLevel> {
 protected:
  void TearDown() override { kernels::limit_cpu_level(kernels::best_cpu_level()); }

  static at::Tensor resampled(CpuLevel level, const at::Tensor& input, at::IntArrayRef size,
                              at::IntArrayRef full, const char* direction, at::IntArrayRef kernel) {
    kernels::limit_cpu_level(level);
    return ops::resample_scale(input, size, symbolic(full), direction, kernel);
  }
};

TEST_P(ResampleScaleTest, EveryInstructionSetGivesTheSameBits) {
  torch::manual_seed(0);
  const std::vector<int64_t> size{2, 3}, full{5, 4}, kernel{3, 3};
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    // Features around the lanes of all vectors, and more than one block.
    for (const int64_t dim : {1, 7, 16, 33, 70}) {
      const auto options = torch::TensorOptions().dtype(dtype);
      const auto map = torch::randn({2, dim, 5, 4}, options);
      const auto tokens = torch::randn({2, 6, dim}, options);
      const auto taps = torch::randn({2, 6, 9 * dim}, options);
      const auto same = [&](const at::Tensor& input, const char* direction,
                            at::IntArrayRef taps_of_axes) {
        const auto run = [&](CpuLevel level) {
          return resampled(level, input, size, full, direction, taps_of_axes);
        };
        EXPECT_TRUE(torch::equal(run(GetParam()), run(CpuLevel::kDefault)))
            << direction << " " << dim << " " << dtype;
      };
      same(map, "average", {});
      same(tokens, "average_backward", {});
      same(tokens, "interpolate", {});
      same(map, "interpolate_backward", {});
      same(taps, "interpolate", kernel);
      same(map, "interpolate_backward", kernel);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, ResampleScaleTest,
                         testing::Values(CpuLevel::kDefault, CpuLevel::kAvx2, CpuLevel::kAvx512));

TEST(RowProducts, InstructionSetsWithAFusedMultiplyAddGiveTheSameBits) {
  torch::manual_seed(0);
  for (const auto dtype : {torch::kFloat, torch::kDouble}) {
    // Columns around the lanes of all vectors, and rows around those of a tile.
    for (const int64_t columns : {1, 16, 70, 133}) {
      for (const int64_t rows : {1, 5, 100}) {
        const auto options = torch::TensorOptions().dtype(dtype);
        const auto x = torch::randn({rows, 37}, options);
        const auto matrix = torch::randn({37, columns}, options);
        const auto offset = torch::randn({columns}, options);
        const auto run = [&](CpuLevel level) {
          kernels::limit_cpu_level(level);
          return ops::row_products(x, matrix, offset);
        };
        EXPECT_TRUE(torch::equal(run(CpuLevel::kAvx2), run(CpuLevel::kAvx512))) << columns << rows;
      }
    }
  }
  kernels::limit_cpu_level(kernels::best_cpu_level());
}

TEST(HierarchicalQuantize, IsOneScaleAfterTheOther) {
  torch::manual_seed(0);
  const auto rows = torch::randn({3, 20, 8}).requires_grad_();
  const auto codebook = torch::randn({1, 16, 8});
  const std::vector<int64_t> full{5, 4};
  const functional::ScaleConvolutions convolutions{
      {torch::randn({8, 8, 3, 3}).requires_grad_(), torch::randn({8, 8, 3, 3}).requires_grad_()},
      {torch::randn({8}).requires_grad_(), torch::randn({8}).requires_grad_()}};
  const std::vector<std::vector<int64_t>> sizes{{1, 1}, {2, 2}, {5, 4}};
  const std::vector<int64_t> of_scales{0, 0, 1};
  const auto found = functional::hierarchical_quantize(
      rows, symbolic(full), {codebook, codebook, codebook}, convolutions,
      HierarchicalQuantizeOptions().sizes(sizes).convolutions(of_scales).ratio(0.4));
  (found.quantized.sum() + found.loss).backward();
  EXPECT_TRUE(rows.grad().defined() && convolutions.weights[1].grad().defined());

  const torch::NoGradGuard no_grad;
  auto residual = rows.transpose(1, 2).reshape({3, 8, 5, 4});
  auto total = torch::zeros_like(residual), loss = torch::zeros({});
  for (size_t scale = 0; scale < sizes.size(); ++scale) {
    const auto tokens = functional::pool_scale(residual, sizes[scale]);
    const auto indices = ops::nearest_code(tokens.flatten(0, 1).unsqueeze(0), codebook).indices;
    EXPECT_TRUE(torch::equal(found.indices[scale], indices.view(tokens.sizes().slice(0, 2))));
    const auto codes = codebook[0].index_select(0, indices.flatten()).view(tokens.sizes());
    const auto at = static_cast<size_t>(of_scales[scale]);
    const auto map =
        functional::spread_scale(codes, sizes[scale], symbolic(full), convolutions.weights[at],
                                 convolutions.biases[at], 0.4);
    total += map;
    residual = residual - map;
    loss += (tokens - codes).square().mean() / 3;
  }
  EXPECT_TRUE(torch::equal(found.quantized.transpose(1, 2).reshape(total.sizes()), total));
  EXPECT_TRUE(torch::allclose(found.loss, loss));
  EXPECT_EQ(found.tokens.size(1), 1 + 4 + 20);
}

}  // namespace
}  // namespace torchvq
