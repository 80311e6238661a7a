#include "functional/vector_norm.h"

#include <c10/util/Exception.h>

namespace torchvq::functional {
namespace {

ops::MomentTargets variance_of(double target) { return {{0, target, 0, 0}, {0.1, 0.07, 0, 0}}; }

}  // namespace

ops::MomentTargets vector_norm(const std::string& name) {
  if (name == "none") return {{0, 1, 0, 0}, {0, 0, 0, 0}};
  if (name == "var") return variance_of(1);
  if (name == "kurt") return {{0, 1, 0, 0}, {0.1, 0.07, 0.06, 0.05}};
  // Variances of logistic distributions with scale 1/2 and 1, and of the Laplace distribution.
  if (name == "var_tanh") return variance_of(0.8225);
  if (name == "var_sigmoid") return variance_of(3.29);
  TORCH_CHECK_VALUE(name == "var_laplace",
                    "FSP: expected vector_norm to be none, var, kurt, var_tanh, var_sigmoid or "
                    "var_laplace, but got ",
                    name);
  return variance_of(2);
}

}  // namespace torchvq::functional
