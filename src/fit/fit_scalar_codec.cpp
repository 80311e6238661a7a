#include <torchvq/fit/fit_scalar_codec.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_solve.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torchvq/ops/random_numbers.h>
#include <torchvq/ops/scalar_quantize.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "detail/scalar_levels.h"
#include "distributed/group.h"
#include "fit/sample_rows.h"
#include "functional/read_block.h"

namespace torchvq::fit {
namespace {

constexpr int64_t kSample = 65536;
// Candidate standard deviations of a projected feature, of which the best is
// chosen. tanh saturates near 1.
constexpr double kNarrowest = 0.4, kStep = 1.1;
constexpr int kWidths = 20;
// Directions whose variance is a smaller share of the largest one are rounding noise.
constexpr double kFlat = 1e-12;
constexpr double kRidge = 1e-9;
constexpr int64_t kRotations = 50;

void check_scalar_fit(const functional::VectorBlocks& vectors, const FitScalarOptions& options) {
  functional::check_blocks("fit_scalar_codec", vectors);
  TORCH_CHECK_VALUE(options.method == "fsq" || options.method == "lfq",
                    "fit_scalar_codec: expected method to be fsq or lfq, but got ", options.method);
  TORCH_CHECK_VALUE(vectors.all_rows() > 0,
                    "fit_scalar_codec: expected at least 1 vector, but got none");
  const bool signs = options.method == "lfq";
  detail::check_scalar_levels("fit_scalar_codec", options.levels, signs ? 2 : 3);
  TORCH_CHECK_VALUE(!signs || *std::ranges::max_element(options.levels) == 2,
                    "fit_scalar_codec: expected levels of lfq to be 2 each, but got ",
                    at::IntArrayRef(options.levels));
  const auto levels = static_cast<int64_t>(options.levels.size());
  TORCH_CHECK_VALUE(options.num_codebooks >= 1 && options.num_codebooks <= vectors.dim / levels,
                    "fit_scalar_codec: expected levels of all codebooks to be 1 to ", vectors.dim,
                    ", the features of a vector, but got ", options.num_codebooks, " codebooks of ",
                    levels);
}

/// The directions of largest variance of centred vectors (S, D), as columns, and those variances.
struct Directions {
  at::Tensor basis;      // (D, F)
  at::Tensor variances;  // (F,)
};

Directions principal_directions(const at::Tensor& centred, int64_t features) {
  const auto covariance = centred.t().mm(centred).div_(centred.size(0));
  const auto [values, vectors] = at::linalg_eigh(covariance);
  const auto dim = centred.size(1);
  return {vectors.narrow(1, dim - features, features).flip({1}),
          values.narrow(0, dim - features, features).flip({0}).clamp_min(0)};
}

/// The direction assigned to each feature; the widest direction gets the most levels.
at::Tensor order_of(const std::vector<int64_t>& levels, int64_t num_codebooks) {
  const auto features = num_codebooks * static_cast<int64_t>(levels.size());
  std::vector<int64_t> by_levels(static_cast<size_t>(features)), direction(by_levels.size());
  std::iota(by_levels.begin(), by_levels.end(), 0);
  const auto level_of = [&](int64_t f) { return levels[static_cast<size_t>(f) % levels.size()]; };
  std::sort(by_levels.begin(), by_levels.end(), [&](int64_t a, int64_t b) {
    return level_of(a) != level_of(b) ? level_of(a) > level_of(b) : a < b;
  });
  for (size_t rank = 0; rank < by_levels.size(); ++rank)
    direction[static_cast<size_t>(by_levels[rank])] = static_cast<int64_t>(rank);
  return at::tensor(direction, at::kLong);
}

at::Tensor signs_of(const at::Tensor& z) { return z.gt(0).to(at::kDouble).mul_(2).sub_(1); }

/// Orthogonal R for which the signs of y R are closest to y R.
at::Tensor rotation_for_signs(const at::Tensor& y, int64_t seed) {
  const auto features = y.size(1);
  const auto rng = at::tensor({seed, int64_t{1}}, at::kLong);
  const auto noise = ops::random_numbers(rng, RandomPurpose::kKmeansSeeding, Distribution::kNormal,
                                         {features, features}, at::kDouble);
  auto rotation = std::get<0>(at::linalg_qr(noise));
  for (int64_t i = 0; i < kRotations; ++i) {
    const auto projected = y.mm(rotation);
    const auto signs = signs_of(projected);
    const auto [u, s, vh] = at::linalg_svd(signs.t().mm(y), /*full_matrices=*/false);
    rotation = vh.t().mm(u.t());
  }
  return rotation;
}

/// Linear map (F, D) and offset (D,) from codes (S, F) to vectors (S, D), by least squares.
struct LinearMap {
  at::Tensor weight, bias;

  [[nodiscard]] at::Tensor of(const at::Tensor& codes) const { return codes.mm(weight).add_(bias); }
};

LinearMap least_squares(const at::Tensor& codes, const at::Tensor& vectors) {
  const auto mean = codes.mean(0);
  const auto centred = codes.sub(mean);
  auto gram = centred.t().mm(centred);
  const auto ridge = gram.diagonal().sum().mul(kRidge).add(std::numeric_limits<double>::min());
  gram = gram.add(at::eye(codes.size(1), at::kDouble).mul(ridge));
  const auto weight = at::linalg_solve(gram, centred.t().mm(vectors));
  return {weight, vectors.mean(0).sub(mean.unsqueeze(0).mm(weight).squeeze(0))};
}

/// The parts of the codec, for centred vectors.
struct Maps {
  at::Tensor in;  // (D, F)
  LinearMap out;
  double error = std::numeric_limits<double>::infinity();
};

void keep_better(Maps& best, const at::Tensor& in, const at::Tensor& codes,
                 const at::Tensor& vectors) {
  auto out = least_squares(codes, vectors);
  const auto error = out.of(codes).sub_(vectors).square_().mean().item<double>();
  if (error < best.error) best = {in, std::move(out), error};
}

Maps fit_fsq(const at::Tensor& centred, const FitScalarOptions& options) {
  const auto features = options.num_codebooks * static_cast<int64_t>(options.levels.size());
  const auto [basis, variances] = principal_directions(centred, features);
  const auto seen = variances.gt(variances[0] * kFlat);
  const auto scale = at::where(seen, variances.rsqrt(), 0.0);
  const auto order = order_of(options.levels, options.num_codebooks);
  const auto unit = basis.mul(scale).index_select(1, order).contiguous();
  const auto z = centred.mm(unit);
  Maps best;
  for (int i = 0; i < kWidths; ++i) {
    const double width = kNarrowest * std::pow(kStep, i);
    const auto split = z.mul(width).view(
        {z.size(0), options.num_codebooks, static_cast<int64_t>(options.levels.size())});
    const auto codes = ops::scalar_quantize(split, options.levels).first;
    keep_better(best, unit.mul(width), codes.view(z.sizes()), centred);
  }
  return best;
}

Maps fit_lfq(const at::Tensor& centred, const FitScalarOptions& options) {
  const auto features = options.num_codebooks * static_cast<int64_t>(options.levels.size());
  const auto basis = principal_directions(centred, features).basis;
  const auto in = basis.mm(rotation_for_signs(centred.mm(basis), options.seed));
  Maps best;
  keep_better(best, in, signs_of(centred.mm(in)), centred);
  return best;
}

// Linear algebra would fail without a hint at the vector.
void check_block(const at::Tensor& block, int64_t first) {
  const auto finite = at::isfinite(block).all(1);
  if (finite.all().item<bool>()) return;
  const auto row = finite.logical_not().nonzero()[0].item<int64_t>();
  TORCH_CHECK_VALUE(false, "fit_scalar_codec: expected finite vectors, but row ", first + row,
                    " holds NaN or infinity");
}

at::Tensor read_sample(const functional::VectorBlocks& vectors, int64_t seed,
                       const distributed::Group& group,
                       const std::function<void(int64_t rows)>& progress) {
  const auto rows = vectors.all_rows();
  const auto size = std::min(rows, kSample);
  const SampledRows sampled(rows, size, at::tensor({seed, int64_t{0}}, at::kLong));
  const auto sample = at::zeros({size, vectors.dim}, at::kFloat);
  for (int64_t first = 0; first < vectors.rows; first += vectors.block_rows) {
    const auto count = std::min(vectors.block_rows, vectors.rows - first);
    const auto block = functional::read_block(vectors, first);
    check_block(block, vectors.shard.first_row + first);
    sampled.copy_to(sample, vectors.shard.first_row + first, block);
    if (progress) progress(first + count);
  }
  // Each row is nonzero on one rank only, so summing the bits as integers gathers them.
  group.sum_(sample.view(at::kInt), "the sample");
  return sample;
}

/// Runs products and factorisations on one thread, because their bits depend on the number of
/// threads.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

/// Fails for maps that float32 cannot hold, and if codes, which lie in [-1, 1], could decode to
/// vectors that it cannot hold.
void check_maps(const at::Tensor& flat, const LinearMap& out, const at::Tensor& sample) {
  const auto farthest = out.weight.abs().sum(0).add(out.bias.abs()).to(at::kFloat);
  const bool fits =
      at::isfinite(flat).all().item<bool>() && at::isfinite(farthest).all().item<bool>();
  TORCH_CHECK_VALUE(fits,
                    "fit_scalar_codec: expected vectors whose linear maps to codes and back fit in "
                    "float32, but got vectors with magnitudes of up to ",
                    sample.abs().max().item<double>());
}

/// All numbers of the codec as one tensor, in which ranks send them.
at::Tensor fit_maps(const at::Tensor& sample, const FitScalarOptions& options) {
  const OneThread one_thread;
  const auto wide = sample.to(at::kDouble);
  const auto mean = wide.mean(0);
  const auto centred = wide.sub(mean);
  auto maps = options.method == "fsq" ? fit_fsq(centred, options) : fit_lfq(centred, options);
  maps.out.bias += mean;
  const auto in_bias = mean.unsqueeze(0).mm(maps.in).squeeze(0).neg();
  const auto flat =
      at::cat({maps.in.t().flatten(), in_bias, maps.out.weight.t().flatten(), maps.out.bias})
          .to(at::kFloat);
  check_maps(flat, maps.out, sample);
  return flat;
}

void set_maps(ScalarCodec& codec, const at::Tensor& flat) {
  const auto features = codec.features(), dim = codec.dim;
  const auto parts = flat.split_with_sizes({features * dim, features, dim * features, dim});
  codec.in_weight = parts[0].view({features, dim}).clone();
  codec.in_bias = parts[1].clone();
  codec.out_weight = parts[2].view({dim, features}).clone();
  codec.out_bias = parts[3].clone();
}

}  // namespace

FitScalarOutput fit_scalar_codec(const functional::VectorBlocks& vectors,
                                 const FitScalarOptions& options,
                                 const std::function<void(int64_t pass, int64_t rows)>& progress) {
  check_scalar_fit(vectors, options);
  const at::NoGradGuard no_grad;
  const auto show = [&](int64_t pass) {
    return [&progress, pass](int64_t rows) {
      if (progress) progress(pass, rows);
    };
  };
  FitScalarOutput output;
  auto& codec = output.codec;
  codec.method = options.method;
  codec.levels = options.levels;
  codec.num_codebooks = options.num_codebooks;
  codec.dim = vectors.dim;
  if (options.method == "lfq" || codec.features() != vectors.dim) {
    const distributed::Group group(vectors.shard.group_name, {"fit_scalar_codec", {}});
    const auto sample = read_sample(vectors, options.seed, group, show(0));
    // One rank computes it, because linear algebra may differ between machines.
    const auto size = codec.features() * (2 * codec.dim + 1) + codec.dim;
    auto flat = group.rank() == 0 ? fit_maps(sample, options) : at::empty({size}, at::kFloat);
    group.broadcast_(flat, "the projections");
    set_maps(codec, flat);
  }
  output.evaluation = evaluate_scalar(vectors, codec, show(1));
  return output;
}

}  // namespace torchvq::fit
