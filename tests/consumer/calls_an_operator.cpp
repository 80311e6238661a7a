// The public header, an exported function, an operator's result, and an exception of it that
// crosses the library boundary.
#include <torchvq/ops/lookup_codes.h>
#include <torchvq/version.h>

#include <cstdio>

#include <ATen/ATen.h>

int main() {
  const auto codebook = at::arange(6, at::kFloat).reshape({1, 3, 2});
  const auto codes =
      torchvq::ops::lookup_codes(codebook, at::tensor({2, -1, 0}, at::kLong).unsqueeze(0));
  const auto expected = at::tensor({4, 5, 0, 0, 0, 1}, at::kFloat).reshape({1, 3, 2});
  if (!at::equal(codes, expected)) {
    std::puts("calls_an_operator: lookup_codes gave the wrong codes");
    return 1;
  }
  try {
    torchvq::ops::lookup_codes(codebook, at::tensor({3}, at::kLong).unsqueeze(0));
    std::puts("calls_an_operator: expected an IndexError, but nothing was thrown");
    return 1;
  } catch (const c10::IndexError&) {
    std::printf("calls_an_operator: torchvq %s works\n", TORCHVQ_VERSION);
    return 0;
  }
}
