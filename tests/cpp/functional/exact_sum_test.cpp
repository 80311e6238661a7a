// The oracle is integer arithmetic: numbers are chosen so that their exact sum is known.
#include <gtest/gtest.h>
#include <torchvq/functional/exact_sum.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace torchvq::functional::exact_sum_test {
namespace {

TEST(ExactSumTest, LosesNothingHoweverUnlikeTheNumbers) {
  ExactSum sum;
  sum.add(1e300);
  for (int i = 0; i < 1000; ++i) sum.add(1);
  EXPECT_EQ(sum.value(), 1e300);  // the double nearest to the sum
  ExactSum small;
  small.add(std::ldexp(1, 53));
  small.add(1);
  small.add(1);
  EXPECT_EQ(small.value(), std::ldexp(1, 53) + 2);  // adding doubles in order would lose both ones
}

TEST(ExactSumTest, OrderAndPartsDoNotChangeABit) {
  std::mt19937_64 generator(1);
  std::vector<double> values(5000);
  for (auto& value : values) {
    value = std::ldexp(static_cast<double>(generator() >> 11), static_cast<int>(generator() % 80));
  }
  ExactSum whole;
  for (const double value : values) whole.add(value);
  std::shuffle(values.begin(), values.end(), generator);
  ExactSum first, second;
  for (size_t i = 0; i < values.size(); ++i) (i % 3 == 0 ? first : second).add(values[i]);
  auto words = first.words();
  const auto other = second.words();
  for (size_t i = 0; i < words.size(); ++i) words[i] += other[i];
  ExactSum together;
  together.set_words(words);
  EXPECT_EQ(together.value(), whole.value());
  EXPECT_EQ(together.words(), whole.words());
}

TEST(ExactSumTest, ReachesFromTheSmallestToTheLargest) {
  const double tiny = std::numeric_limits<double>::denorm_min();
  ExactSum sum;
  EXPECT_EQ(sum.value(), 0);
  for (int i = 0; i < 3; ++i) sum.add(tiny);
  EXPECT_EQ(sum.value(), 3 * tiny);
  ExactSum large;
  large.add(std::numeric_limits<double>::max());
  EXPECT_EQ(large.value(), std::numeric_limits<double>::max());
}

TEST(ExactSumTest, InfinityAndNanStay) {
  ExactSum sum;
  sum.add(1);
  sum.add(std::numeric_limits<double>::infinity());
  EXPECT_EQ(sum.value(), std::numeric_limits<double>::infinity());
  sum.add(std::nan(""));
  EXPECT_TRUE(std::isnan(sum.value()));
}

}  // namespace
}  // namespace torchvq::functional::exact_sum_test
