#pragma once
#include <ATen/core/Tensor.h>

#include <string>
namespace torchvq::functional {
at::Tensor interim_kmeans(const at::Tensor& sample, int64_t size, int64_t iterations, int64_t seed,
                          const std::string& metric);
}
