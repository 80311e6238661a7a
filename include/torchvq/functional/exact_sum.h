// A sum of doubles that does not depend on the order.
#pragma once

#include <torchvq/export.h>

#include <array>
#include <cstdint>

namespace torchvq::functional {

/// Adds non-negative numbers as integers of 2200 bits, so that any order and any split into partial
/// sums gives the same bits.
class TORCHVQ_API ExactSum {
 public:
  /// The words in which a sum is sent: the words of several sums, added up, are the words of their
  /// sum (of at most 2^31 sums).
  static constexpr int kWords = 70;
  using Words = std::array<int64_t, kWords>;

  void add(double value);
  double value() const;

  Words words() const;
  void set_words(const Words& words);

 private:
  // Digits to base 2^32 in 64 bits: the upper half collects what would carry.
  static constexpr int kDigits = kWords - 2;
  static constexpr int kInfinities = kDigits, kNans = kDigits + 1;

  void carry();

  Words words_{};
  int64_t added_ = 0;
};

}  // namespace torchvq::functional
