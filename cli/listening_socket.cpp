#include "listening_socket.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace torchvq::cli {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses resolve(const std::string& address, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const auto text = std::to_string(port);
  if (::getaddrinfo(address.c_str(), text.c_str(), &hints, &found) != 0) found = nullptr;
  return {found, &::freeaddrinfo};
}

bool is_loopback(const addrinfo& info) {
  if (info.ai_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(info.ai_addr)->sin6_addr);
  }
  const auto& ipv4 = *reinterpret_cast<const sockaddr_in*>(info.ai_addr);
  return ntohl(ipv4.sin_addr.s_addr) >> 24 == 127;
}

bool is_number(const std::string& address) {
  in6_addr bytes{};
  return ::inet_pton(AF_INET, address.c_str(), &bytes) == 1 ||
         ::inet_pton(AF_INET6, address.c_str(), &bytes) == 1;
}

[[noreturn]] void throw_taken(const std::string& address, uint16_t port) {
  C10_THROW_ERROR(DistError,
                  c10::str("cannot listen on ", address, ":", port, ": ", std::strerror(errno)));
}

}  // namespace

std::optional<int> listen_on(const std::string& address, uint16_t port) {
  const auto found = resolve(address, port);
  if (!found) return std::nullopt;
  const auto& info = *found;
  const bool means_it = is_number(address) || address == "localhost";
  if (is_loopback(info) && !means_it) return std::nullopt;
  const int descriptor = ::socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return std::nullopt;
  const int yes = 1;
  ::setsockopt(descriptor, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(descriptor, info.ai_addr, info.ai_addrlen) == 0) return descriptor;
  const int reason = errno;
  ::close(descriptor);
  errno = reason;
  if (reason == EADDRNOTAVAIL) return std::nullopt;
  throw_taken(address, port);
}

}  // namespace torchvq::cli
