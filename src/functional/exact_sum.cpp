#include <torchvq/functional/exact_sum.h>

#include <cmath>
#include <limits>

namespace torchvq::functional {
namespace {

constexpr int kDigitBits = 32;
constexpr uint64_t kDigitMask = (uint64_t{1} << kDigitBits) - 1;
constexpr int kLowestBit = -1074;  // of a double: the smallest subnormal
constexpr int kMantissaBits = 53;
constexpr int64_t kAddsWithoutCarry = int64_t{1} << 30;

}  // namespace

void ExactSum::add(double value) {
  if (value == 0) return;
  if (!std::isfinite(value)) {
    ++words_[std::isnan(value) ? kNans : kInfinities];
    return;
  }
  int exponent = 0;
  const double fraction = std::frexp(value, &exponent);
  // Subnormal numbers have zeros below their lowest bit, so the shift drops nothing else.
  auto mantissa = static_cast<uint64_t>(std::ldexp(fraction, kMantissaBits));
  int place = exponent - kMantissaBits - kLowestBit;
  if (place < 0) {
    mantissa >>= -place;
    place = 0;
  }
  auto shifted = static_cast<unsigned __int128>(mantissa) << (place % kDigitBits);
  for (int digit = place / kDigitBits; shifted != 0; ++digit, shifted >>= kDigitBits) {
    words_[static_cast<size_t>(digit)] +=
        static_cast<int64_t>(static_cast<uint64_t>(shifted) & kDigitMask);
  }
  if (++added_ == kAddsWithoutCarry) carry();
}

void ExactSum::carry() {
  for (size_t digit = 0; digit + 1 < kDigits; ++digit) {
    words_[digit + 1] += words_[digit] >> kDigitBits;
    words_[digit] &= static_cast<int64_t>(kDigitMask);
  }
  added_ = 0;
}

double ExactSum::value() const {
  const auto words = this->words();
  if (words[kNans] > 0) return std::numeric_limits<double>::quiet_NaN();
  if (words[kInfinities] > 0) return std::numeric_limits<double>::infinity();
  double sum = 0;
  for (int digit = 0; digit < kDigits; ++digit) {
    if (words[static_cast<size_t>(digit)] == 0) continue;
    sum += std::ldexp(static_cast<double>(words[static_cast<size_t>(digit)]),
                      digit * kDigitBits + kLowestBit);
  }
  return sum;
}

ExactSum::Words ExactSum::words() const {
  auto copy = *this;
  copy.carry();
  return copy.words_;
}

void ExactSum::set_words(const Words& words) {
  words_ = words;
  carry();
}

}  // namespace torchvq::functional
