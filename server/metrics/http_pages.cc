// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/http_pages.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "common/base/log.h"
#include "server/metrics/live_page.h"

namespace pinfeed {
namespace {

std::string_view ReasonPhrase(int code) {
  static constexpr std::pair<int, std::string_view> kPhrases[] = {{200, "OK"},
                                                                  {400, "Bad Request"},
                                                                  {404, "Not Found"},
                                                                  {405, "Method Not Allowed"},
                                                                  {421, "Misdirected Request"},
                                                                  {431, "Request Header Fields Too Large"},
                                                                  {503, "Service Unavailable"},
                                                                  {505, "HTTP Version Not Supported"}};
  const auto* const known = std::ranges::find(kPhrases, code, &std::pair<int, std::string_view>::first);
  return known != std::end(kPhrases) ? known->second : "Internal Server Error";
}

HttpAnswer MakeAnswer(int code, std::string_view type, const std::shared_ptr<const std::string>& body,
                      bool with_body, std::string_view more_headers = {}) {
  // Other sites must not embed or read these answers, and browsers must not guess another content type.
  std::string head = "HTTP/1.1 " + std::to_string(code) + " " + std::string(ReasonPhrase(code)) +
                     "\r\nContent-Type: " + std::string(type) +
                     "\r\nContent-Length: " + std::to_string(body->size()) +
                     "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
                     "Cross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\n" +
                     std::string(more_headers) + "Connection: close\r\n\r\n";
  static const auto kNothing = std::make_shared<const std::string>();
  return {std::move(head), with_body ? body : kNothing};
}

}  // namespace

HttpAnswer TextAnswer(int code, std::string_view text, bool with_body) {
  const std::string_view allow = code == 405 ? "Allow: GET, HEAD\r\n" : "";
  return MakeAnswer(code, "text/plain; charset=utf-8",
                    std::make_shared<const std::string>(std::string(text) + "\n"), with_body, allow);
}

std::shared_ptr<const std::string> HttpPages::CachedPage::Get() {
  const auto now = std::chrono::steady_clock::now();
  if (body == nullptr || now - made >= kMaxPageAge) {
    body = std::make_shared<const std::string>(make());
    made = now;  // the time of the request, so that no figure is older than the page's age
  }
  return body;
}

HttpAnswer HttpPages::Page(const HttpRequest& request) {
  if (request.path == "/metrics")
    return MakeAnswer(200, "text/plain; version=0.0.4; charset=utf-8", metrics_.Get(), request.with_body);
  if (request.path == "/status.json")
    return MakeAnswer(200, "application/json", status_.Get(), request.with_body);
  if (request.path == "/healthz") return TextAnswer(200, "ok", request.with_body);
  if (request.path == "/readyz") {
    const bool ready = is_ready_();
    return TextAnswer(ready ? 200 : 503, ready ? "ok" : "not ready", request.with_body);
  }
  if (request.path == "/") {
    static const auto kPage = std::make_shared<const std::string>(kLivePage);
    return MakeAnswer(200, "text/html; charset=utf-8", kPage, request.with_body,
                      "Content-Security-Policy: " + std::string(kLivePagePolicy) + "\r\n");
  }
  return TextAnswer(404, "not found; pinfeedd serves /, /status.json, /metrics, /healthz and /readyz",
                    request.with_body);
}

HttpAnswer HttpPages::Answer(const HttpRequest& request) {
  try {
    return Page(request);
  } catch (const std::exception& error) {  // thrown by the libraries that generate the pages
    spdlog::error("answer an HTTP request: {}", error.what());
    return TextAnswer(500, "internal error", request.with_body);
  }
}

}  // namespace pinfeed
