// SPDX-License-Identifier: Apache-2.0
#include "common/os/tcp_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

#include "common/base/parse_number.h"

namespace pinfeed {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Parses a numeric address. Never performs a name lookup.
Result<AddressList> NumericAddress(const std::string& address) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const std::string port = address.substr(address.rfind(':') + 1);
  if (const int error = ::getaddrinfo(HostOf(address).c_str(), port.c_str(), &hints, &list); error != 0)
    return InvalidArgument(::gai_strerror(error));
  return AddressList(list, &::freeaddrinfo);
}

}  // namespace

bool IsTcpAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  constexpr std::string_view kInNoAddress("/\0", 2);
  if (colon == std::string_view::npos || colon == 0 || text.find_first_of(kInNoAddress) != text.npos)
    return false;
  const std::string_view host = text.substr(0, colon);
  if (!ParseNumber<uint16_t>(text.substr(colon + 1))) return false;
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return bracketed || host.find_first_of(":[]") == std::string_view::npos;
}

std::string HostOf(std::string_view address) {
  std::string host(address.substr(0, address.rfind(':')));
  std::erase_if(host, [](char c) { return c == '[' || c == ']'; });
  return host;
}

bool IsNumericTcpAddress(const std::string& text) {
  return IsTcpAddress(text) && NumericAddress(text).ok();
}

Result<UniqueFd> ListenTcp(const std::string& address, int backlog) {
  ASSIGN_OR_RETURN(const AddressList found, NumericAddress(address));
  UniqueFd fd(::socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int one = 1;
  const auto set = [&](int level, int option) {
    return ::setsockopt(fd.get(), level, option, &one, sizeof one) == 0;
  };
  if (!fd || !set(SOL_SOCKET, SO_REUSEADDR) ||
      (found->ai_family == AF_INET6 && !set(IPPROTO_IPV6, IPV6_V6ONLY)) ||
      ::bind(fd.get(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(fd.get(), backlog) != 0)
    return ErrnoStatus("bind", errno);
  return fd;
}

Result<uint16_t> BoundPort(const UniqueFd& fd) {
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0)
    return ErrnoStatus("get the port of a socket", errno);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

}  // namespace pinfeed
