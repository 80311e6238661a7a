// How often a module with k-means reads its flag, which waits if the flag is on a device.
#include "modules/seen_flag.h"

#include <gtest/gtest.h>

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/InferenceMode.h>

namespace torchvq::seen_flag_test {
namespace {

at::Tensor flag(bool value) { return at::scalar_tensor(value, at::kBool); }

struct Reader {
  detail::SeenFlag seen;
  int looks = 0;

  bool operator()(const at::Tensor& tensor) {
    return seen.holds(tensor, [&](const at::Tensor& own) {
      ++looks;
      return own.item<bool>();
    });
  }
};

TEST(SeenFlagTest, LooksUntilItIsTrueAndThenNoMore) {
  Reader read;
  auto initted = flag(false);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(read(initted));
  EXPECT_EQ(read.looks, 3);
  initted.logical_or_(flag(true));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(read(initted));
  EXPECT_EQ(read.looks, 4);
}

TEST(SeenFlagTest, LooksAgainAfterAWrite) {
  Reader read;
  auto initted = flag(true);
  EXPECT_TRUE(read(initted));
  initted.detach().fill_(false);
  EXPECT_FALSE(read(initted));
  initted.fill_(true);
  EXPECT_TRUE(read(initted));
  initted.set_data(flag(false));  // as Module::to() and load() do
  EXPECT_FALSE(read(initted));
  EXPECT_TRUE(read(flag(true)));
  EXPECT_FALSE(read(initted));
}

TEST(SeenFlagTest, AlwaysLooksAtInferenceTensors) {
  const c10::InferenceMode inference;
  Reader read;
  auto initted = flag(true);
  EXPECT_TRUE(read(initted));
  initted.fill_(false);
  EXPECT_FALSE(read(initted));
}

}  // namespace
}  // namespace torchvq::seen_flag_test
