// The features of C++20 that the library uses, so that a compiler without them is rejected with a
// sentence (cmake/compiler.cmake, tools/check_compiler.sh).
#include <bit>
#include <concepts>
#include <map>
#include <numbers>
#include <span>

template <std::integral T>
constexpr bool even(T value) {
  return std::popcount(static_cast<unsigned>(value)) % 2 == 0;
}

struct Options {
  double decay = 0.0;
  int size = 0;
};

int main() {
  const std::map<int, int> known{{3, 1}};
  const int values[] = {1, 2, 3};
  const Options options{.decay = std::numbers::pi, .size = 3};
  return known.contains(std::span(values).back()) && even(options.size) ? 0 : 1;
}
