// SPDX-License-Identifier: Apache-2.0
// What the HTTP server has to say. In: requests. Out: answers.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/metrics/http_request.h"

namespace prometheus {
class Collectable;
}

namespace pinfeed {

struct HttpAnswer {
  std::string head;
  std::shared_ptr<const std::string> body;  // never null; empty for HEAD
};

// An answer with a line of text.
HttpAnswer TextAnswer(int code, std::string_view text, bool with_body = true);

// Purpose: the pages. Borrows: what makes them. Threads: one. Errors: what a page throws is answered with
// 500. Invariant: figures are at most kShared old, and made no more often than that.
class HttpPages {
 public:
  static constexpr std::chrono::milliseconds kShared{100};

  HttpPages(const prometheus::Collectable& metrics, std::function<std::string()> status_json,
            std::function<bool()> is_ready);
  HttpAnswer Answer(const HttpRequest& request);

 private:
  // A page that many may ask for at once.
  struct Shared {
    std::function<std::string()> make;
    std::shared_ptr<const std::string> body;
    std::chrono::steady_clock::time_point made;
    std::shared_ptr<const std::string> Get();
  };
  HttpAnswer Page(const HttpRequest& request);

  Shared metrics_;
  Shared status_;
  const std::function<bool()> is_ready_;
};

}  // namespace pinfeed
