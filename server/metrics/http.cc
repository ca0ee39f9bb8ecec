// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/http.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "common/base/quote.h"
#include "common/os/poll_timeout.h"
#include "common/os/start_thread.h"
#include "common/os/tcp_address.h"
#include "server/net/descriptor_room.h"
#include "server/net/refusals.h"

namespace pinfeed {
namespace {

constexpr int kBacklog = 128;
constexpr size_t kMaxConnections = 64;
constexpr int kMaxAcceptsPerPass = 16;  // so that a flood of connections does not starve requests
constexpr std::chrono::seconds kRequestTimeout(2);
constexpr std::chrono::seconds kAnswerTimeout(10);
constexpr std::chrono::seconds kCloseTimeout(1);        // for the client to read the answer and close
constexpr std::chrono::milliseconds kAcceptPause(100);  // when no descriptors are left

std::string AddressText(const sockaddr_storage& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const binary =
      address.ss_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr)
          : &reinterpret_cast<const sockaddr_in&>(address).sin_addr;
  return ::inet_ntop(address.ss_family, binary, text.data(), text.size()) == nullptr ? "" : text.data();
}

}  // namespace

HttpServer::HttpServer(UniqueFd listener, uint16_t port, WakeEvent stop, const Options& options)
    : port_(port),
      listener_(std::move(listener)),
      stop_(std::move(stop)),
      hosts_(HostOf(options.listen), options.hosts),
      refusals_(*options.refusals),
      pages_(options.metrics, options.status_json, options.is_ready),
      thread_(StartThread("http", [this] { Run(); })) {}

HttpServer::~HttpServer() {
  stop_.Set();
  thread_.join();
}

void HttpServer::Run() {
  while (true) {
    std::vector<pollfd> waits = {{stop_.fd(), POLLIN, 0},
                                 {Clock::now() < accept_after_ ? -1 : listener_.get(), POLLIN, 0}};
    for (const Connection& connection : connections_) {
      const short events = connection.stage == Stage::kAnswer ? POLLOUT : POLLIN;
      waits.push_back({connection.fd.get(), events, 0});
    }
    if (::poll(waits.data(), waits.size(), PollTimeout(NextDeadline())) < 0 && errno != EINTR) {
      refusals_.Count(Refusal::kDescriptors, ErrnoStatus("wait for HTTP requests", errno).ToString());
      ::poll(waits.data(), 1, static_cast<int>(kAcceptPause.count()));  // for the stop alone, without memory
    }
    if (waits[0].revents != 0) return;
    size_t i = 2;
    for (ConnectionIterator connection = connections_.begin(); connection != connections_.end(); ++i) {
      const bool late = Clock::now() >= connection->deadline;
      const bool open = !late && (waits[i].revents == 0 || Step(*connection));
      connection = open ? std::next(connection) : connections_.erase(connection);
    }
    if (waits[1].revents != 0) Accept();
  }
}

HttpServer::Clock::time_point HttpServer::NextDeadline() const {
  Clock::time_point next = Clock::time_point::max();
  for (const Connection& connection : connections_) next = std::min(next, connection.deadline);
  return Clock::now() < accept_after_ ? std::min(next, accept_after_) : next;
}

// Drops the oldest connection without a pending answer, or else the oldest of all.
void HttpServer::MakeRoom() {
  if (connections_.size() < kMaxConnections) return;
  const auto idle = std::ranges::find_if(
      connections_, [](const Connection& connection) { return connection.stage != Stage::kAnswer; });
  const ConnectionIterator dropped = idle == connections_.end() ? connections_.begin() : idle;
  refusals_.Count(Refusal::kHttp, "HTTP: the oldest of " + std::to_string(kMaxConnections) +
                                      " connections, from " + dropped->peer + ", was dropped for a new one");
  connections_.erase(dropped);
}

void HttpServer::Accept() {
  for (int i = 0; i < kMaxAcceptsPerPass; ++i) {
    if (NextIsLeftToFiles(listener_.get())) {
      refusals_.Count(Refusal::kDescriptors,
                      "accept an HTTP connection: the last descriptors are left to the files of samples");
      accept_after_ = Clock::now() + kAcceptPause;
      return;
    }
    sockaddr_storage peer{};
    socklen_t length = sizeof peer;
    UniqueFd fd(::accept4(listener_.get(), reinterpret_cast<sockaddr*>(&peer), &length,
                          SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!fd) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      refusals_.Count(Refusal::kDescriptors, ErrnoStatus("accept an HTTP connection", errno).ToString());
      accept_after_ = Clock::now() + kAcceptPause;
      return;
    }
    sockaddr_storage local{};
    length = sizeof local;
    if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) != 0)
      continue;  // already closed
    MakeRoom();
    connections_.push_back(
        {std::move(fd), AddressText(peer), AddressText(local), Clock::now() + kRequestTimeout});
    // Most clients have already sent their request, so answer them before a flood could evict them.
    if (!Step(connections_.back())) connections_.pop_back();
  }
}

bool HttpServer::Step(Connection& connection) {
  if (connection.stage == Stage::kRequest && !ReadRequest(connection)) return false;
  if (connection.stage == Stage::kAnswer && !WriteAnswer(connection)) return false;
  return connection.stage != Stage::kClosing || AwaitClose(connection);
}

bool HttpServer::ReadRequest(Connection& connection) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  std::array<char, 4096> chunk;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by recv
  while (true) {
    const ssize_t bytes = ::recv(connection.fd.get(), chunk.data(), chunk.size(), 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (bytes <= 0) return false;
    connection.in.append(chunk.data(), static_cast<size_t>(bytes));
    if (connection.in.starts_with("\r\n")) connection.in.erase(0, 2);  // RFC 9112, section 2.2
    const size_t end = connection.in.find(kEnd);
    // Or as much of it as has arrived.
    const std::string_view head = std::string_view(connection.in).substr(0, end);
    const bool bare = HasBareLineFeed(head);
    if (end == std::string::npos && !bare && connection.in.size() <= kMaxHttpHeadBytes) continue;
    const bool whole = end != std::string::npos && end + kEnd.size() <= kMaxHttpHeadBytes;
    if (bare)
      connection.answer = Refused(connection, {400, "a line ends without a carriage return"});
    else if (whole)
      connection.answer = AnswerTo(connection, std::string_view(connection.in).substr(0, end + kEnd.size()));
    else
      connection.answer = Refused(connection, {431, "the head of the request is too long"});
    connection.in.clear();
    connection.stage = Stage::kAnswer;
    connection.deadline = Clock::now() + kAnswerTimeout;
    return true;
  }
}

HttpAnswer HttpServer::Refused(const Connection& connection, const HttpFault& fault) {
  refusals_.Count(Refusal::kHttp, "HTTP from " + connection.peer + ": " + fault.text);
  return TextAnswer(fault.code, fault.text);
}

HttpAnswer HttpServer::AnswerTo(const Connection& connection, std::string_view head) {
  const std::variant<HttpRequest, HttpFault> parsed = ParseHttpHead(head);
  if (const auto* fault = std::get_if<HttpFault>(&parsed)) return Refused(connection, *fault);
  const auto& request = std::get<HttpRequest>(parsed);
  if (hosts_.Serves(request.host, connection.local)) return pages_.Answer(request);
  refusals_.Count(Refusal::kHttp,
                  "HTTP from " + connection.peer + " for the host " + QuotePath(request.host) +
                      ", which is not a name of this daemon; add it to http_hosts to allow it");
  return TextAnswer(421,
                    "pinfeedd does not serve this host name, only localhost, the address of http_listen "
                    "and the names in http_hosts",
                    request.with_body);
}

bool HttpServer::WriteAnswer(Connection& connection) {
  const std::string& head = connection.answer.head;
  const std::string& body = *connection.answer.body;
  while (connection.sent < head.size() + body.size()) {
    const bool in_head = connection.sent < head.size();
    const std::string_view rest = in_head ? std::string_view(head).substr(connection.sent)
                                          : std::string_view(body).substr(connection.sent - head.size());
    const ssize_t bytes = ::send(connection.fd.get(), rest.data(), rest.size(),
                                 MSG_NOSIGNAL | (in_head && !body.empty() ? MSG_MORE : 0));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    if (bytes <= 0) return false;
    connection.sent += static_cast<size_t>(bytes);
  }
  // Closing with unread bytes would reset the connection, and the client could lose the answer.
  ::shutdown(connection.fd.get(), SHUT_WR);
  connection.answer = {};
  connection.stage = Stage::kClosing;
  connection.deadline = Clock::now() + kCloseTimeout;
  return true;
}

bool HttpServer::AwaitClose(const Connection& connection) {
  std::array<char, 4096> ignored;  // NOLINT(cppcoreguidelines-pro-type-member-init): filled by recv
  const ssize_t bytes = ::recv(connection.fd.get(), ignored.data(), ignored.size(), 0);
  return bytes > 0 || (bytes < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK));
}

Result<std::unique_ptr<HttpServer>> HttpServer::Create(const Options& options) {
  Result<UniqueFd> listener = ListenTcp(options.listen, kBacklog);
  if (!listener.ok()) {
    const Status error = listener.status().WithContext("listen for HTTP on " + options.listen);
    if (error.code() == Code::kResourceExhausted) return error;
    return Unavailable(error.message() +
                       "; is the port in use, and the address one of this host's? change http_listen");
  }
  ASSIGN_OR_RETURN(const uint16_t port, BoundPort(*listener));
  ASSIGN_OR_RETURN(WakeEvent stop, WakeEvent::Create());
  return std::unique_ptr<HttpServer>(new HttpServer(*std::move(listener), port, std::move(stop), options));
}

}  // namespace pinfeed
