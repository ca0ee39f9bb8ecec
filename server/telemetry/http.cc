// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/http.h"

#include <CivetServer.h>
#include <netdb.h>
#include <prometheus/collectable.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>

#include <algorithm>
#include <future>
#include <utility>
#include <vector>

#include "common/log.h"
#include "common/sync.h"
#include "common/unique_handle.h"
#include "server/telemetry/live_page.h"

namespace pinfeed {
namespace {

constexpr std::chrono::milliseconds kKnockPause(5);

void Respond(mg_connection* connection, int code, const char* reason, const char* type, std::string_view body,
             bool with_body, const std::string& more_headers = {}) {
  // No page elsewhere may embed or read these, nor a browser take them for something else than they are.
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
            "X-Content-Type-Options: nosniff\r\nCross-Origin-Resource-Policy: same-origin\r\n"
            "Referrer-Policy: no-referrer\r\n%sConnection: close\r\n\r\n",
            code, reason, type, body.size(), more_headers.c_str());
  if (with_body) mg_write(connection, body.data(), body.size());
}

// One page; HEAD is answered like GET without the body.
class PageHandler : public CivetHandler {
 public:
  bool handleGet(CivetServer* /*server*/, mg_connection* connection) override {
    return Serve(connection, true);
  }
  bool handleHead(CivetServer* /*server*/, mg_connection* connection) override {
    return Serve(connection, false);
  }

 private:
  virtual void Write(mg_connection* connection, bool with_body) = 0;
  bool Serve(mg_connection* connection, bool with_body) {
    try {
      Write(connection, with_body);
    } catch (const std::exception& error) {  // the C server below cannot pass it on
      spdlog::error("answer an HTTP request: {}", error.what());
      Respond(connection, 500, "Internal Server Error", "text/plain", "internal error\n", with_body);
    }
    return true;
  }
};

class MetricsHandler final : public PageHandler {
 public:
  explicit MetricsHandler(const prometheus::Collectable* metrics) : metrics_(metrics) {}

 private:
  void Write(mg_connection* connection, bool with_body) override {
    const std::string body = prometheus::TextSerializer().Serializer::Serialize(metrics_->Collect());
    Respond(connection, 200, "OK", "text/plain; version=0.0.4; charset=utf-8", body, with_body);
  }
  const prometheus::Collectable* metrics_;
};

class ProbeHandler final : public PageHandler {
 public:
  explicit ProbeHandler(std::function<bool()> good) : good_(std::move(good)) {}

 private:
  void Write(mg_connection* connection, bool with_body) override {
    if (good_()) {
      Respond(connection, 200, "OK", "text/plain", "ok\n", with_body);
    } else {
      Respond(connection, 503, "Service Unavailable", "text/plain", "not ready\n", with_body);
    }
  }
  const std::function<bool()> good_;
};

class LivePageHandler final : public PageHandler {
  void Write(mg_connection* connection, bool with_body) override {
    const std::string policy = "Content-Security-Policy: " + std::string(kLivePagePolicy) + "\r\n";
    Respond(connection, 200, "OK", "text/html; charset=utf-8", kLivePage, with_body, policy);
  }
};

class StatusHandler final : public PageHandler {
 public:
  explicit StatusHandler(std::function<std::string()> status) : status_(std::move(status)) {}

 private:
  void Write(mg_connection* connection, bool with_body) override {
    Respond(connection, 200, "OK", "application/json", status_(), with_body);
  }
  const std::function<std::string()> status_;
};

// civetweb tells why it cannot start only to its log.
class LogCapture {
 public:
  static int OnMessage(const mg_connection* connection, const char* message) {
    const auto* server = static_cast<const CivetServer*>(mg_get_user_data(mg_get_context(connection)));
    // civetweb hands its context on as const; it is this object, which is not.
    if (server != nullptr)
      static_cast<LogCapture*>(const_cast<void*>(server->getUserContext()))->Take(message);
    return 1;  // handled
  }
  std::string last() {
    const MutexLock lock(mutex_);
    return last_;
  }

 private:
  void Take(const char* message) {
    spdlog::debug("HTTP server: {}", message);
    const MutexLock lock(mutex_);
    last_ = message;
  }
  Mutex mutex_;
  std::string last_ PF_GUARDED_BY(mutex_);
};

// Connects to a listener at `listen` (ADDRESS:PORT, numeric) and hangs up. Nothing to do when it fails.
void Knock(const std::string& listen, uint16_t port) {
  std::string host = listen.substr(0, listen.rfind(':'));
  host.erase(std::remove_if(host.begin(), host.end(), [](char c) { return c == '[' || c == ']'; }),
             host.end());
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* address = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &address) != 0) return;
  const UniqueFd socket(::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // Not waited for: the listener's queue takes it, or nobody listens any more.
  [[maybe_unused]] const int begun = ::connect(socket.get(), address->ai_addr, address->ai_addrlen);
  ::freeaddrinfo(address);
}

}  // namespace

struct HttpServer::Server {
  explicit Server(const Options& options)
      : metrics(options.metrics),
        healthy([] { return true; }),
        ready(options.is_ready),
        status(options.status_json) {}
  MetricsHandler metrics;
  ProbeHandler healthy;
  ProbeHandler ready;
  StatusHandler status;
  LivePageHandler live;
  LogCapture log;
  std::unique_ptr<CivetServer> civet;  // last: its threads use the handlers
};

Result<std::unique_ptr<HttpServer>> HttpServer::Create(Options options) {
  auto server = std::make_unique<Server>(options);
  // A connection that says nothing holds a thread until the timeout.
  const std::vector<std::string> settings = {"listening_ports",    options.listen, "num_threads",       "16",
                                             "request_timeout_ms", "1000",         "enable_keep_alive", "no"};
  CivetCallbacks callbacks;
  callbacks.log_message = &LogCapture::OnMessage;
  try {
    server->civet = std::make_unique<CivetServer>(settings, &callbacks, &server->log);
    server->civet->addHandler("/metrics$", server->metrics);
    server->civet->addHandler("/healthz$", server->healthy);
    server->civet->addHandler("/readyz$", server->ready);
    server->civet->addHandler("/status.json$", server->status);
    server->civet->addHandler("/$", server->live);
    const std::vector<int> ports = server->civet->getListeningPorts();
    const auto port = static_cast<uint16_t>(ports.empty() ? 0 : ports.front());
    return std::unique_ptr<HttpServer>(new HttpServer(std::move(server), std::move(options.listen), port));
  } catch (const std::exception& error) {
    const std::string reason = server->log.last().empty() ? error.what() : server->log.last();
    return Unavailable("listen for HTTP on " + options.listen + ": " + reason +
                       "; is the port in use? choose another with http_listen");
  }
}

HttpServer::HttpServer(std::unique_ptr<Server> server, std::string listen, uint16_t port)
    : server_(std::move(server)), listen_(std::move(listen)), port_(port) {}

// civetweb's accepting thread looks whether it is to stop after each connection, else every 2 s (compiled
// in).
HttpServer::~HttpServer() {
  const std::future<void> stopped = std::async(std::launch::async, [this] { server_->civet.reset(); });
  while (stopped.wait_for(kKnockPause) != std::future_status::ready) Knock(listen_, port_);
}

}  // namespace pinfeed
