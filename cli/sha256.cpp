#include "sha256.h"

#include <bit>
#include <cstddef>
#include <string>

namespace torchvq::cli {
namespace {

constexpr size_t kBlock = 64;

constexpr std::array<uint32_t, 64> kRoundConstants = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using State = std::array<uint32_t, 8>;

constexpr State kStart = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                          0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

uint32_t word_at(std::string_view bytes, size_t at) {
  uint32_t word = 0;
  for (size_t i = 0; i < 4; ++i) word = word << 8 | static_cast<uint8_t>(bytes[at + i]);
  return word;
}

std::array<uint32_t, 64> expand(std::string_view block) {
  std::array<uint32_t, 64> words{};
  for (size_t i = 0; i < 16; ++i) words[i] = word_at(block, 4 * i);
  for (size_t i = 16; i < words.size(); ++i) {
    const auto a = words[i - 15], b = words[i - 2];
    const auto low = std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3);
    const auto high = std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10);
    words[i] = words[i - 16] + low + words[i - 7] + high;
  }
  return words;
}

void compress(State& state, std::string_view block) {
  const auto words = expand(block);
  auto [a, b, c, d, e, f, g, h] = state;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const auto first = h + sum1 + ((e & f) ^ (~e & g)) + kRoundConstants[i] + words[i];
    const auto sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const auto second = sum0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + second;
  }
  const State step = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < state.size(); ++i) state[i] += step[i];
}

std::string padded(std::string_view message) {
  std::string bytes(message);
  const uint64_t bits = uint64_t{8} * message.size();
  bytes += '\x80';
  while (bytes.size() % kBlock != kBlock - 8) bytes += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(bits >> shift);
  return bytes;
}

std::string bytes_of(const Digest& digest) { return {digest.begin(), digest.end()}; }

}  // namespace

Digest sha256(std::string_view message) {
  auto state = kStart;
  const auto bytes = padded(message);
  for (size_t at = 0; at < bytes.size(); at += kBlock) {
    compress(state, std::string_view(bytes).substr(at, kBlock));
  }
  Digest digest{};
  for (size_t i = 0; i < digest.size(); ++i) {
    digest[i] = static_cast<uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  }
  return digest;
}

Digest keyed_hash(std::string_view key, std::string_view message) {
  auto block = key.size() > kBlock ? bytes_of(sha256(key)) : std::string(key);
  block.resize(kBlock, '\0');
  auto inner = block, outer = block;
  for (auto& byte : inner) byte = static_cast<char>(byte ^ 0x36);
  for (auto& byte : outer) byte = static_cast<char>(byte ^ 0x5c);
  return sha256(outer + bytes_of(sha256(inner.append(message))));
}

bool equal_digests(const Digest& a, const Digest& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

}  // namespace torchvq::cli
