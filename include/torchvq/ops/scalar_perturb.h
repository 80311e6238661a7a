// Finite scalar perturbation: noise of the width of a bin in training, bin centres otherwise.
#pragma once

#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include <torchvq/export.h>

namespace torchvq::ops {

/// Options of scalar_perturb() and scalar_centroids().
struct PerturbOptions {
  std::string cdf = "tanh";   ///< tanh, sigmoid, normal, laplace or cauchy, see scalar_perturb()
  std::string form = "unit";  ///< of the codes: act, unit or inverse, see scalar_perturb()
  double eps = 1e-6;          ///< inverse: activations are kept in [eps, 1 - eps]; in (0, 1/2)
};

/// The result of scalar_perturb().
struct PerturbResult {
  at::Tensor codes;          ///< (*, D), float64 for float64 x, otherwise float32; 0 where masked
  at::Tensor level_indices;  ///< (*, D), int64; -1 where masked
  at::Tensor indices;        ///< (*), int64; -1 where masked
  at::Tensor acceptance;  ///< scalar: the fraction of perturbations that were kept; 1 without any
};

/// Perturbs activations by up to half a bin, or moves them to the centres of their bins.
///
/// Formula      u = F(x), F a distribution function; level i = floor(u L), index = sum over j of
///              i_j * product of levels before j. A feature is quantized with probability
///              quantize_rate, and always without rng: u' = (i + 1/2) / L. Otherwise u' = u + e, e
///              uniform in +- 1 / (2 L); where that leaves [0, 1], u' = u. F, by `cdf`: tanh (tanh
///              x + 1) / 2; sigmoid 1 / (1 + exp(-x)); normal (1 + erf(x / sqrt 2)) / 2; laplace
///              exp(x) / 2 below 0, 1 - exp(-x) / 2 above; cauchy atan(x) / pi + 1/2. code, by
///              `form`: act u'; unit sqrt(12) (u' - 1/2), whose variance is 1 for uniform u';
///              inverse F^-1(u') with u' kept in [eps, 1 - eps].
/// Paper        Zhai et al. 2026, VP-VAE: Rethinking Vector Quantization via Adaptive Vector
///              Perturbation, arXiv:2602.17133 (FSP)
///
/// @param x              (*, D), floating point, D the number of levels.
/// @param levels         each in [2, 65536]; product at most 2^62.
/// @param rng            (2,), int64, see random_numbers.h; empty: quantize everything.
/// @param quantize_rate  in [0, 1].
/// @param mask           (*), bool, true for real tokens. The draws of a token depend on the number
///                       of real tokens before it, so that padding changes nothing.
///
/// Gradient     of codes to x: as without the move, dF/dx times the scale of the form; for
///              `inverse` the identity. Not differentiable again.
/// Exactness    levels are found by comparing x with the numbers at which they change, computed
///              once in long double, so indices depend only on the value of x.
/// Non-finite   a token with NaN or infinity gives codes NaN and index 0.
/// Throws       c10::ValueError, c10::TypeError for bad arguments.
TORCHVQ_API PerturbResult scalar_perturb(const at::Tensor& x, at::IntArrayRef levels,
                                         const std::optional<at::Tensor>& rng,
                                         double quantize_rate = 0.0,
                                         const PerturbOptions& options = {},
                                         const std::optional<at::Tensor>& mask = std::nullopt);

/// The codes of indices, with the bits that scalar_perturb() returns where it quantizes.
///
/// @param indices  (*), int64, in [0, product of levels), or -1, which gives zeros.
/// @param dtype    of the codes: at::kFloat or at::kDouble.
///
/// Throws       c10::IndexError for an index outside (on CPU).
TORCHVQ_API at::Tensor scalar_centroids(const at::Tensor& indices, at::IntArrayRef levels,
                                        const PerturbOptions& options = {},
                                        at::ScalarType dtype = at::kFloat);

/// The levels of activations: floor(act * L), int64, clamped to [0, L - 1]; NaN is level 0. No
/// gradient.
///
/// @param act  (*, D), floating point, D the number of levels.
TORCHVQ_API at::Tensor scalar_act_levels(const at::Tensor& act, at::IntArrayRef levels);

}  // namespace torchvq::ops
