#pragma once

#include <ATen/core/Tensor.h>

#include "detail/precision.h"

namespace torchvq::detail {

void check_unit_vectors(const at::Tensor& x);

void check_unit_vectors_backward(const at::Tensor& grad, const at::Tensor& x,
                                 const at::Tensor& units);

}  // namespace torchvq::detail
