// SPDX-License-Identifier: Apache-2.0
// The HTTP server, on the loopback by default: the live page at /, /status.json, /metrics, /healthz, /readyz.
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

// Purpose: answers scrapes and probes, one request per connection.
// Owns: its socket, connections and thread. Borrows: what the options refer to, until the destructor, which
// joins the thread.
// Threads: a single thread does all the work. Errors: Create returns the reason when the address cannot be
// bound.
// Invariants:
// 1. No client delays another. The thread never blocks on one, requests and answers have deadlines, and
//    excess connections displace the oldest idle one.
// 2. Only names of this machine are served (HttpHosts).
// 3. Each page with figures is generated at most ten times per second and then shared.
class HttpServer {
 public:
  struct Options {
    std::string listen;              // ADDRESS:PORT; port 0: any free one
    std::vector<std::string> hosts;  // names to serve besides the loopback names and the address
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
