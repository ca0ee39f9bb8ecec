// SPDX-License-Identifier: Apache-2.0
// The loopback HTTP server: the live page at /, /status.json, /metrics, /healthz, /readyz.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace prometheus {
class Collectable;
}

namespace pinfeed {

class Refusals;

// Purpose: answers scrapes and probes, one request a connection. Owns: its socket, connections and thread.
// Borrows: what the options hold, until its destruction, which joins. Threads: one of its own does all.
// Errors: Create tells what could not be bound.
// Invariants: 1. no client holds up another: the thread waits for none, each connection has a deadline for
// its request and its answer, and when there are too many the oldest that has asked for nothing goes; 2. it
// is served under names of this machine only (HttpHosts); 3. however often it is asked, a page of figures is
// made ten times a second at most, and shared.
class HttpServer {
 public:
  struct Options {
    std::string listen;              // ADDRESS:PORT; port 0: any free one
    std::vector<std::string> hosts;  // names to answer to, besides loopback's and the address
    const prometheus::Collectable* metrics = nullptr;
    std::function<std::string()> status_json;
    std::function<bool()> is_ready;
    Refusals* refusals = nullptr;
  };
  static Result<std::unique_ptr<HttpServer>> Create(const Options& options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const;

 private:
  class Server;
  explicit HttpServer(std::unique_ptr<Server> server);

  std::unique_ptr<Server> server_;
};

}  // namespace pinfeed
