// SPDX-License-Identifier: Apache-2.0
// The head of an HTTP request, from whoever reaches the port. In: bytes. Out: what is asked for, and by which
// name; or what is to be answered instead.
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
  bool with_body = true;  // GET; HEAD wants none
  std::string path;       // without the query
  std::string host;       // by NormalHost
};

// An answer that is no page.
struct HttpFault {
  int code = 0;
  std::string text;
};

// Whether a line in `bytes` ends with LF alone. RFC 9112 leaves it to the server whether that is an end; here
// it is none, and is to be refused as soon as it comes, since the end of the head would never come.
bool HasBareLineFeed(std::string_view bytes);

// `head` ends with the empty line. GET and HEAD of HTTP/1.0 and 1.1 (RFC 9112), for a path or a whole URI; a
// Host is required of both, and exactly one.
std::variant<HttpRequest, HttpFault> ParseHttpHead(std::string_view head);

// The name or address of a Host header (RFC 9110, section 7.2) in the one form to compare: without port,
// brackets, capitals and the last dot; addresses as inet_ntop writes them. Empty when it is none.
std::string NormalHost(std::string_view host);

// Purpose: which names a server answers to, so that a page elsewhere whose name was pointed at this machine
// (DNS rebinding) reads nothing: its browser sends that name. A value. Threads: constant; any.
class HttpHosts {
 public:
  // `listen` is the numeric address that is listened on; `more` are further names.
  HttpHosts(const std::string& listen, const std::vector<std::string>& more);
  // `local` is the address that the connection came in at. Both by NormalHost.
  bool Serves(const std::string& host, const std::string& local) const;

 private:
  std::set<std::string> names_;
};

}  // namespace pinfeed
