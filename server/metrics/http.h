// SPDX-License-Identifier: Apache-2.0
// The HTTP server, on the loopback by default: the live page at /, /status.json, /metrics, /healthz, /readyz.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/os/wake_event.h"
#include "server/metrics/http_pages.h"
#include "server/metrics/http_request.h"

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
    std::function<std::string()> metrics;
    std::function<std::string()> status_json;
    std::function<bool()> is_ready;
    Refusals* refusals = nullptr;
  };
  static Result<std::unique_ptr<HttpServer>> Create(const Options& options);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  uint16_t port() const { return port_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage { kRequest, kAnswer, kClosing };
  struct Connection {
    UniqueFd fd;
    std::string peer;
    std::string local;
    Clock::time_point deadline;
    Stage stage = Stage::kRequest;
    std::string in = {};
    HttpAnswer answer = {};
    size_t sent = 0;
  };
  using ConnectionIterator = std::list<Connection>::iterator;

  HttpServer(UniqueFd listener, uint16_t port, WakeEvent stop, const Options& options);
  void Run();
  void Accept();
  void MakeRoom();
  // The following return whether the connection stays open.
  bool Step(Connection& connection);
  bool ReadRequest(Connection& connection);
  bool WriteAnswer(Connection& connection);
  static bool AwaitClose(const Connection& connection);
  HttpAnswer AnswerTo(const Connection& connection, std::string_view head);
  HttpAnswer Refused(const Connection& connection, const HttpFault& fault);
  // When to look at the connections again, whatever they do.
  Clock::time_point NextDeadline() const;

  const uint16_t port_;
  const UniqueFd listener_;
  const WakeEvent stop_;
  const HttpHosts hosts_;
  Refusals& refusals_;
  HttpPages pages_;
  std::list<Connection> connections_;  // oldest first
  Clock::time_point accept_after_;
  std::thread thread_;  // last, because it uses the other members
};

}  // namespace pinfeed
