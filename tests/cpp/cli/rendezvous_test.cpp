// The parts of `torchvq fit` on several processes that read data from other processes.
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <string>

#include "sha256.h"
#include "shard_lines.h"

namespace torchvq::cli::rendezvous_test {
namespace {

std::string hex(const Digest& digest) {
  constexpr auto kDigits = "0123456789abcdef";
  std::string text;
  for (const auto byte : digest) text.append({kDigits[byte >> 4], kDigits[byte & 15]});
  return text;
}

// Examples of FIPS 180-4, and lengths around a block.
TEST(Sha256Test, IsThatOfTheStandard) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Cases 2 and 6 of RFC 4231: a short key, and one longer than a block.
TEST(Sha256Test, KeyedHashIsThatOfTheStandard) {
  EXPECT_EQ(hex(keyed_hash("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex(keyed_hash(std::string(131, '\xaa'),
                           "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_TRUE(equal_digests(sha256("a"), sha256("a")));
  EXPECT_FALSE(equal_digests(sha256("a"), sha256("b")));
}

TEST(ShardLinesTest, ALineComesBack) {
  const auto line = line_of({7, 3, "--seed 1"}, true);
  EXPECT_EQ(text_of(line), "--seed 1");
  EXPECT_EQ(line[kRows].item<int64_t>(), 7);
  EXPECT_EQ(line[kDim].item<int64_t>(), 3);
}

TEST(ShardLinesTest, LongCommandsThatDifferStayDifferent) {
  const std::string start(kTextBytes - 1, 'x');
  EXPECT_EQ(text_of(line_of({0, 0, start}, true)), start);
  const auto a = text_of(line_of({0, 0, start + "a"}, true));
  const auto b = text_of(line_of({0, 0, start + "b"}, true));
  EXPECT_EQ(a.size(), static_cast<size_t>(kTextBytes - 1));
  EXPECT_EQ(a.substr(0, 900), start.substr(0, 900));
  EXPECT_NE(a, b);
}

// An unterminated text must not run into the memory after it, here the next process's line.
TEST(ShardLinesTest, ATextWithoutAnEndEndsWithItsLine) {
  const auto lines = at::stack({line_of({}, true), line_of({}, true)});
  lines[0].slice(0, kText).view(at::kByte).fill_('a');
  lines[1].view(at::kByte).narrow(0, 0, 8).fill_('b');
  EXPECT_EQ(text_of(lines[0]), std::string(kTextBytes, 'a'));
}

}  // namespace
}  // namespace torchvq::cli::rendezvous_test
