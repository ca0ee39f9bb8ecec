// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as the head of an HTTP request. What is accepted names a path and a host, in forms
// that the log and the comparison with names can take.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/base/status.h"
#include "server/metrics/http_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pinfeed;  // NOLINT(google-build-using-namespace): libFuzzer wants the function outside
  const std::string_view head(reinterpret_cast<const char*>(data), size);
  const std::variant<HttpRequest, HttpFault> parsed = ParseHttpHead(head);
  const std::string_view lines = head.substr(0, head.find("\r\n\r\n", 2));
  const bool odd = HasBareLineFeed(lines) || lines.find('\0') != std::string_view::npos;
  PF_CHECK(!odd || std::holds_alternative<HttpFault>(parsed), "no other server sees other lines");
  if (const auto* const fault = std::get_if<HttpFault>(&parsed)) {
    PF_CHECK(fault->code >= 400 && fault->code < 600 && !fault->text.empty(), "a fault is an answer");
    return 0;
  }
  const auto& request = std::get<HttpRequest>(parsed);
  const auto visible = [](char c) { return c > ' ' && c < 0x7F; };
  PF_CHECK(request.path.substr(0, 1) == "/" && std::ranges::all_of(request.path, visible), "a path is one");
  PF_CHECK(!request.host.empty() && request.host.size() <= 255 && std::ranges::all_of(request.host, visible),
           "a host is one");
  PF_CHECK(NormalHost(request.host) == request.host, "a host has one form");
  const HttpHosts hosts("10.0.0.7", {});
  PF_CHECK(!hosts.Serves(request.host + ".evil.example", "10.0.0.7"), "what ends elsewhere is elsewhere");
  return 0;
}
