#include "ops/random_numbers.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/random_key.h"
#include "kernels/random.h"

namespace torchvq {
namespace {

/// Writes `number(i)`, a double, to each position i.
template <typename T, typename Number>
void fill(const at::Tensor& values, const Number& number) {
  auto* to = values.mutable_data_ptr<T>();
  at::parallel_for(0, values.numel(), 4096, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<uint64_t>(begin); i < static_cast<uint64_t>(end); ++i) {
      to[i] = static_cast<T>(number(i));
    }
  });
}

template <typename T>
void draw(const at::Tensor& values, uint64_t key, bool normal, int precision) {
  const auto bits = [key](uint64_t i) { return kernels::random_bits(key, i); };
  if (normal) {
    fill<T>(values,
            [&](uint64_t i) { return kernels::normal_from_bits(bits(2 * i), bits(2 * i + 1)); });
  } else {
    fill<T>(values, [&](uint64_t i) { return kernels::uniform_from_bits(bits(i), precision); });
  }
}

at::Tensor random_numbers(const at::Tensor& rng, int64_t purpose, c10::SymIntArrayRef size,
                          bool normal, std::optional<at::ScalarType> dtype, int64_t stream) {
  const auto result = detail::check_random_numbers(rng, size, dtype);
  const auto key = detail::read_key(rng, purpose, stream);
  const int precision = detail::uniform_precision(result);
  const bool wide = result == at::kDouble;
  auto values = at::empty(C10_AS_INTARRAYREF_SLOW(size),
                          rng.options().dtype(wide ? at::kDouble : at::kFloat));
  wide ? draw<double>(values, key, normal, precision) : draw<float>(values, key, normal, precision);
  return values.to(result);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("random_numbers", random_numbers); }

}  // namespace torchvq
