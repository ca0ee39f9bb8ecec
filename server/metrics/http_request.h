// SPDX-License-Identifier: Apache-2.0
// Parses the head of an HTTP request from an untrusted client. In: bytes. Out: the requested path and host,
// or the error to answer with.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace pinfeed {

// Longer heads are refused.
inline constexpr size_t kMaxHttpHeadBytes = 8192;

struct HttpRequest {
  bool with_body = true;  // true for GET, false for HEAD
  std::string path;       // without the query
  std::string host;       // normalised by NormalHost
};

// An error answer.
struct HttpFault {
  int code = 0;
  std::string text;
};

// Whether a line in `bytes` ends with a bare LF. RFC 9112 lets a server accept that as a line end. This
// server rejects it immediately, because the end of the head would never arrive.
bool HasBareLineFeed(std::string_view bytes);

// `head` ends with the empty line. Accepts GET and HEAD of HTTP/1.0 and 1.1 (RFC 9112), for a path or an
// absolute URI. Both versions must have exactly one Host header.
std::variant<HttpRequest, HttpFault> ParseHttpHead(std::string_view head);

// Normalises the name or address of a Host header (RFC 9110, section 7.2) for comparison: no port, brackets,
// capitals or trailing dot, and addresses as inet_ntop writes them. Empty when it is malformed.
std::string NormalHost(std::string_view host);

// Purpose: the names that the server answers to. Prevents DNS rebinding: a foreign page whose name resolves
// to this machine can read nothing, because its browser sends that name. A value. Threads: immutable; any.
class HttpHosts {
 public:
  // `listen` is the numeric address of the listener; `more` are further names.
  HttpHosts(const std::string& listen, const std::vector<std::string>& more);
  // `local` is the local address of the connection. Both are normalised by NormalHost.
  bool Serves(const std::string& host, const std::string& local) const;

 private:
  std::set<std::string> names_;
};

}  // namespace pinfeed
