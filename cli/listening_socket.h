// Where the store of a rendezvous listens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace torchvq::cli {

/// A socket that listens on `address` alone, for the caller to own; none where `address` does not
/// say which: a name that is this machine's loopback here (a line of /etc/hosts) but not elsewhere,
/// or an address that is not this machine's (a forwarded one).
///
/// Throws c10::DistError where the port is taken.
std::optional<int> listen_on(const std::string& address, uint16_t port);

}  // namespace torchvq::cli
