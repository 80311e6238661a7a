// A gradient whose own derivative is an error: detail/once_differentiable.h.
#include <torch/library.h>

TORCH_LIBRARY_FRAGMENT(torchvq, m) {
  m.def("no_second_derivative(Tensor gradient, Tensor[] inputs, str op) -> Tensor");
}
