// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/http_request.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <optional>

#include "common/base/ascii_case.h"

namespace pinfeed {
namespace {

constexpr std::string_view kLineEnd = "\r\n";

bool IsTokenCharacter(char c) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";  // RFC 9110, section 5.6.2
  return IsAsciiAlphanumeric(c) || kOthers.find(c) != std::string_view::npos;
}

// Whether `c` may occur in a header value (RFC 9110, section 5.5). Other control characters could act as line
// ends elsewhere.
bool IsInValue(char c) {
  return c == '\t' || (static_cast<unsigned char>(c) >= ' ' && c != 0x7F);
}

bool IsVisible(char c) {
  return c > ' ' && c < 0x7F;
}

// Removes and returns the first line, without its line end.
std::string_view TakeLine(std::string_view& rest) {
  const size_t end = rest.find(kLineEnd);
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + kLineEnd.size());
  return line;
}

// The address as inet_ntop writes it; empty when it is not of that family.
std::optional<std::string> Address(int family, const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> binary{};
  std::array<char, INET6_ADDRSTRLEN> out{};
  if (::inet_pton(family, text.c_str(), binary.data()) != 1) return std::nullopt;
  if (::inet_ntop(family, binary.data(), out.data(), out.size()) == nullptr) return std::nullopt;
  return std::string(out.data());
}

// Parses the origin form, a path, or the absolute form, a URI, whose host takes precedence (RFC 9112, section
// 3.2). `out.host` stays empty for a path.
std::optional<HttpFault> ParseTarget(std::string_view target, HttpRequest& out) {
  constexpr std::string_view kScheme = "http://";
  if (EqualsIgnoringCase(target.substr(0, kScheme.size()), kScheme)) {
    target.remove_prefix(kScheme.size());
    const size_t end = std::min(target.find_first_of("/?"), target.size());
    out.host = NormalHost(target.substr(0, end));
    if (out.host.empty()) return HttpFault{400, "the URI of the request has no host"};
    target.remove_prefix(end);
    if (target.empty() || target.front() == '?') target = "/";
  }
  if (target.empty() || target.front() != '/') return HttpFault{400, "the request has no valid path"};
  out.path = target.substr(0, target.find('?'));
  return std::nullopt;
}

std::optional<HttpFault> ParseRequestLine(std::string_view line, HttpRequest& out) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == std::string_view::npos || last == first) return HttpFault{400, "malformed request line"};
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  // Servers of an earlier minor version also accept later ones (RFC 9110, section 2.5).
  const bool is_1_x =
      version.size() == 8 && version.substr(0, 7) == "HTTP/1." && version[7] >= '0' && version[7] <= '9';
  if (!is_1_x)
    return HttpFault{version.substr(0, 5) == "HTTP/" ? 505 : 400, "only HTTP/1.1 and HTTP/1.0 are supported"};
  if (method != "GET" && method != "HEAD") return HttpFault{405, "only GET and HEAD are supported"};
  if (!std::ranges::all_of(target, IsVisible) || target.find('#') != std::string_view::npos)
    return HttpFault{400, "the request has no valid path"};
  out.with_body = method == "GET";
  return ParseTarget(target, out);
}

}  // namespace

std::string NormalHost(std::string_view host) {
  if (!std::ranges::all_of(host, IsVisible)) return {};  // also excludes NUL, which would end a C string
  const size_t bracket = host.find(']');
  const size_t colon = host.rfind(':');
  const bool bracketed = !host.empty() && host.front() == '[' && bracket != std::string_view::npos;
  if (bracketed || host.find(':') == colon) {  // otherwise an IPv6 address without brackets
    if (colon != std::string_view::npos && (!bracketed || colon > bracket)) {
      const std::string_view port = host.substr(colon + 1);
      if (port.size() > 5 || port.find_first_not_of("0123456789") != std::string_view::npos) return {};
      host = host.substr(0, colon);
    }
  }
  if (bracketed) {
    if (bracket + 1 != host.size()) return {};
    return Address(AF_INET6, std::string(host.substr(1, bracket - 1))).value_or("");
  }
  if (host.empty() || host.size() > 255) return {};
  std::string name(host);
  if (const auto address = Address(AF_INET, name)) return *address;
  if (const auto address = Address(AF_INET6, name)) return *address;
  std::ranges::transform(name, name.begin(), AsciiLower);
  if (name.size() > 1 && name.back() == '.') name.pop_back();
  const auto in_name = [](char c) { return IsAsciiAlphanumeric(c) || c == '.' || c == '-' || c == '_'; };
  return std::ranges::all_of(name, in_name) ? name : std::string();
}

bool HasBareLineFeed(std::string_view bytes) {
  for (size_t at = bytes.find('\n'); at != std::string_view::npos; at = bytes.find('\n', at + 1))
    if (at == 0 || bytes[at - 1] != '\r') return true;
  return false;
}

std::variant<HttpRequest, HttpFault> ParseHttpHead(std::string_view head) {
  HttpRequest request;
  if (head.substr(0, kLineEnd.size()) == kLineEnd) head.remove_prefix(kLineEnd.size());  // section 2.2
  if (const auto fault = ParseRequestLine(TakeLine(head), request)) return *fault;
  std::optional<std::string_view> host;
  while (true) {
    const std::string_view line = TakeLine(head);
    if (line.empty()) break;
    const size_t colon = line.find(':');
    const std::string_view name = line.substr(0, colon);
    if (colon == std::string_view::npos || name.empty() || !std::ranges::all_of(name, IsTokenCharacter))
      return HttpFault{400, "a header line is malformed"};
    const std::string_view value = line.substr(colon + 1);
    if (!std::ranges::all_of(value, IsInValue))
      return HttpFault{400, "a header value contains a control character"};
    if (!EqualsIgnoringCase(name, "host")) continue;
    if (host) return HttpFault{400, "more than one Host header"};
    host = Trim(value);
  }
  const std::string named = NormalHost(host.value_or(""));
  if (named.empty()) return HttpFault{400, "the request has no valid host"};
  if (request.host.empty()) request.host = named;
  return request;
}

HttpHosts::HttpHosts(const std::string& listen, const std::vector<std::string>& more)
    : names_{"localhost", NormalHost(listen)} {
  for (const std::string& name : more) names_.insert(NormalHost(name));
}

bool HttpHosts::Serves(const std::string& host, const std::string& local) const {
  if (host.empty()) return false;
  in_addr address{};
  const bool loopback =
      host == "::1" || host == "::ffff:127.0.0.1" ||
      (::inet_pton(AF_INET, host.c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127);
  return loopback || host == local || names_.count(host) != 0;
}

}  // namespace pinfeed
