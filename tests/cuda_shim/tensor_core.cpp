// mma.m16n8k16 in half precision, with the rounding that a test selects.
#include <algorithm>
#include <array>

#include "cuda_shim.h"

namespace torchvq::cuda_shim {
namespace {

float decoded(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 31  ? (fraction ? NAN : HUGE_VAL)
                           : exponent == 0 ? std::ldexp(fraction, -24)
                                           : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>(bits & 0x8000 ? -magnitude : magnitude);
}

const std::array<float, 65536>& halves() {
  static const auto table = [] {
    std::array<float, 65536> values;
    for (size_t i = 0; i < values.size(); ++i) values[i] = decoded(static_cast<uint16_t>(i));
    return values;
  }();
  return table;
}

/// Truncated to multiples of `unit`.
double cut(double value, double unit) { return unit > 0 ? std::trunc(value / unit) * unit : value; }

/// The last place of a 24-bit number of the magnitude of `value`.
double last_place(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(1.0, exponent - 24);
}

float toward_zero(double value) {
  const auto rounded = static_cast<float>(value);
  return std::abs(static_cast<double>(rounded)) > std::abs(value) ? std::nextafter(rounded, 0.0f)
                                                                  : rounded;
}

/// Eight products and the previous value, added as by the hardware: aligned to the largest.
float add_truncated(const double* products, double sum) {
  double largest = std::abs(sum);
  for (int i = 0; i < 8; ++i) largest = std::max(largest, std::abs(products[i]));
  const double unit = last_place(largest);
  double total = cut(sum, unit);
  for (int i = 0; i < 8; ++i) total += cut(products[i], unit);
  return toward_zero(total);
}

float add_nearest(const double* products, double sum) {
  // Products of half precision are multiples of 2^-48; long double holds such sums exactly.
  auto total = static_cast<long double>(sum);
  for (int i = 0; i < 16; ++i) total += products[i];
  return static_cast<float>(total);
}

/// Each of sixteen additions errs by a whole last place of the largest term, in one direction.
float add_worst(const double* products, double sum, bool up) {
  double largest = std::abs(sum), total = sum, partial = sum;
  for (int i = 0; i < 16; ++i) {
    partial += products[i];
    largest = std::max({largest, std::abs(products[i]), std::abs(partial)});
    total += products[i];
  }
  const double error = 16 * last_place(largest);
  return static_cast<float>(total + (up ? error : -error));
}

/// sum += the sixteen products, with the rounding that the test selects. Zeros change nothing.
void add_products(float& sum, const double* products, bool up) {
  if (std::all_of(products, products + 16, [](double product) { return product == 0; })) return;
  switch (settings().accumulation) {
    case Accumulation::kNearest:
      sum = add_nearest(products, sum);
      break;
    case Accumulation::kTruncate:
      sum = add_truncated(products + 8, add_truncated(products, sum));
      break;
    case Accumulation::kWorst:
      sum = add_worst(products, sum, up);
      break;
  }
}

}  // namespace

float half_to_float(uint16_t bits) { return halves()[bits]; }

uint16_t float_to_half(float value) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const double magnitude = std::abs(static_cast<double>(value));
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7fff);
  if (magnitude == 0) return sign;
  if (magnitude >= 65520) return static_cast<uint16_t>(sign | 0x7c00);
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent, -13);  // below this, all numbers have the same spacing
  const double steps = std::nearbyint(std::ldexp(magnitude, 11 - exponent));
  // A fraction rounded up to 2048 carries into the exponent.
  return static_cast<uint16_t>(sign + (exponent + 13) * 1024 + static_cast<int>(steps));
}

void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint64_t low = a[0] | static_cast<uint64_t>(a[1]) << 32,
                 high = a[2] | static_cast<uint64_t>(a[3]) << 32,
                 codes = b0 | static_cast<uint64_t>(b1) << 32;
  const Exchanged* lanes = exchange({{low, high, codes}});
  const auto half_of = [](uint64_t word, int place) {
    return halves()[word >> (16 * place) & 0xffff];
  };
  const int group = lane() / 4, pair = lane() % 4;
  for (int i = 0; i < 4; ++i) {
    const int row = group + (i < 2 ? 0 : 8), column = pair * 2 + i % 2;
    double products[16];
    for (int k = 0; k < 16; ++k) {
      const Exchanged& rows = lanes[row % 8 * 4 + k % 8 / 2];
      const Exchanged& columns = lanes[column * 4 + k % 8 / 2];
      const double x = half_of(rows.word[k / 8], row / 8 * 2 + k % 2);
      products[k] = x * half_of(columns.word[2], k / 8 * 2 + k % 2);
    }
    add_products(sum[i], products, (column + row) % 2 == 0);
  }
}

void multiply_add_lines(float& sum, const uint16_t* a, int row, const uint16_t* b, int column) {
  const auto* rows = a + row * 64;
  const auto* columns = b + column * 64;
  for (int first = 0; first < 64; first += 16) {
    double products[16];
    for (int k = 0; k < 16; ++k) {
      const int piece = (first + k) / 8, within = k % 8;
      const double x = halves()[rows[(piece ^ row % 8) * 8 + within]];
      products[k] = x * halves()[columns[(piece ^ column % 8) * 8 + within]];
    }
    add_products(sum, products, (column + row) % 2 == 0);
  }
}

}  // namespace torchvq::cuda_shim
