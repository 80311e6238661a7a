// SHA-256 and the keyed hash based on it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace torchvq::cli {

using Digest = std::array<uint8_t, 32>;

/// FIPS 180-4.
Digest sha256(std::string_view message);

/// HMAC-SHA-256 (RFC 2104) of a message under a key of any length.
Digest keyed_hash(std::string_view key, std::string_view message);

/// Whether two digests are equal, in constant time.
bool equal_digests(const Digest& a, const Digest& b);

}  // namespace torchvq::cli
