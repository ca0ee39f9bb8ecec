// SPDX-License-Identifier: Apache-2.0
// The loopback HTTP server: the live page at /, /status.json, /metrics, /healthz, /readyz.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/result.h"

namespace prometheus {
class Collectable;
}

namespace pinfeed {

// Purpose: answers scrapes and probes. Owns: civetweb's server and threads. Borrows: what the options hold,
// until its destruction, which joins. Errors: Create tells what could not be bound.
class HttpServer {
 public:
  struct Options {
    std::string listen;  // ADDRESS:PORT; port 0: any free one
    const prometheus::Collectable* metrics = nullptr;
    std::function<std::string()> status_json;
    std::function<bool()> is_ready;
  };
  static Result<std::unique_ptr<HttpServer>> Create(Options options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const { return port_; }

 private:
  struct Server;  // keeps civetweb out of this header
  HttpServer(std::unique_ptr<Server> server, std::string listen, uint16_t port);

  std::unique_ptr<Server> server_;
  const std::string listen_;
  const uint16_t port_;
};

}  // namespace pinfeed
