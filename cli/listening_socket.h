// The socket on which the store of a rendezvous listens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace torchvq::cli {

/// A socket, owned by the caller, that listens only on `address`; empty if `address` does not
/// determine one: a name that resolves to this machine's loopback (a line of /etc/hosts), or an
/// address that this machine does not have (a forwarded one).
///
/// Throws c10::DistError if the port is taken.
std::optional<int> listen_on(const std::string& address, uint16_t port);

}  // namespace torchvq::cli
