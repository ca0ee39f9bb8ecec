// SPDX-License-Identifier: Apache-2.0
// The pages of the HTTP server. In: requests. Out: answers.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "server/metrics/http_request.h"

namespace pinfeed {

struct HttpAnswer {
  std::string head;
  std::shared_ptr<const std::string> body;  // never null; empty for HEAD
};

// An answer with one line of text.
HttpAnswer TextAnswer(int code, std::string_view text, bool with_body = true);

// Purpose: generates the pages. Borrows: the sources of their data. Threads: one. Errors: exceptions of a
// page are answered with 500. Invariant: figures are at most kMaxPageAge old, and generated no more often
// than that.
class HttpPages {
 public:
  static constexpr std::chrono::milliseconds kMaxPageAge{100};

  HttpPages(std::function<std::string()> metrics, std::function<std::string()> status_json,
            std::function<bool()> is_ready)
      : metrics_{std::move(metrics), {}, {}},
        status_{std::move(status_json), {}, {}},
        is_ready_(std::move(is_ready)) {}
  HttpAnswer Answer(const HttpRequest& request);

 private:
  // A page that is cached because many clients may request it at once.
  struct CachedPage {
    std::function<std::string()> make;
    std::shared_ptr<const std::string> body;
    std::chrono::steady_clock::time_point made;
    std::shared_ptr<const std::string> Get();
  };
  HttpAnswer Page(const HttpRequest& request);

  CachedPage metrics_;
  CachedPage status_;
  const std::function<bool()> is_ready_;
};

}  // namespace pinfeed
