#include "ops/random_normal.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "detail/random_key.h"
#include "kernels/random.h"

namespace torchvq {
namespace {

at::Tensor random_normal(const at::Tensor& rng, int64_t purpose, c10::SymIntArrayRef size,
                         std::optional<at::ScalarType> dtype, int64_t stream) {
  const auto result = detail::check_random_normal(rng, size, dtype);
  const auto key = detail::read_key(rng, purpose, stream);

  const bool wide = result == at::kDouble;
  auto values = at::empty(C10_AS_INTARRAYREF_SLOW(size),
                          rng.options().dtype(wide ? at::kDouble : at::kFloat));
  const auto fill = [&](auto* to) {
    at::parallel_for(0, values.numel(), 4096, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<uint64_t>(begin); i < static_cast<uint64_t>(end); ++i) {
        to[i] = static_cast<std::remove_pointer_t<decltype(to)>>(kernels::normal_from_bits(
            kernels::random_bits(key, 2 * i), kernels::random_bits(key, 2 * i + 1)));
      }
    });
  };
  wide ? fill(values.mutable_data_ptr<double>()) : fill(values.mutable_data_ptr<float>());
  return values.to(result);
}

}  // namespace

TORCH_LIBRARY_IMPL(torchvq, CPU, m) { m.impl("random_normal", random_normal); }

}  // namespace torchvq
