// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/http.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>

#include "common/base/unique_handle.h"
#include "server/metrics/http_pages.h"
#include "server/net/refusals.h"
#include "tests/support/testing.h"

namespace pinfeed {
namespace {

class HttpTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(server_, HttpServer::Create({"127.0.0.1:0",
                                                      {"named.example"},
                                                      [this] {
                                                        ++collected_;
                                                        return std::string();
                                                      },
                                                      [this] { return status_; },
                                                      [this] { return ready_.load(); },
                                                      &refusals_}));
  }

  // `receive_bytes`: what the kernel keeps for who does not read; 0: its own choice.
  UniqueFd Connect(int receive_bytes = 0) const {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (receive_bytes > 0) {
      EXPECT_EQ(::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes), 0);
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_->port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  static void Send(const UniqueFd& fd, std::string_view text) {
    EXPECT_EQ(::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // All that comes until the server hangs up.
  static std::string Receive(const UniqueFd& fd) {
    std::string all;
    std::array<char, 65536> chunk;
    ssize_t bytes = 0;
    while ((bytes = ::recv(fd.get(), chunk.data(), chunk.size(), 0)) > 0)
      all.append(chunk.data(), static_cast<size_t>(bytes));
    return all;
  }
  std::string Ask(std::string_view path, std::string_view host = "localhost",
                  std::string_view method = "GET") const {
    const UniqueFd fd = Connect();
    Send(fd, std::string(method) + " " + std::string(path) + " HTTP/1.1\r\nHost: " + std::string(host) +
                 "\r\n\r\n");
    return Receive(fd);
  }
  uint64_t Refused() const { return refusals_.counts()[static_cast<size_t>(Refusal::kHttp)]; }

  std::atomic<int> collected_{0};
  std::string status_ = "{}\n";
  std::atomic<bool> ready_{true};
  Refusals refusals_;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpTest, AnswersEachPage) {
  EXPECT_THAT(Ask("/healthz"), AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), EndsWith("\r\n\r\nok\n")));
  EXPECT_THAT(Ask("/readyz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(Ask("/status.json"),
              AllOf(HasSubstr("Content-Type: application/json\r\n"), EndsWith("\r\n\r\n{}\n")));
  EXPECT_THAT(Ask("/"), HasSubstr("Content-Security-Policy: "));
  EXPECT_THAT(Ask("/metrics?x"), HasSubstr("version=0.0.4"));
  EXPECT_THAT(Ask("/nothing"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("/metrics/"), StartsWith("HTTP/1.1 404 "));
  EXPECT_THAT(Ask("/healthz", "localhost", "HEAD"),
              AllOf(HasSubstr("Content-Length: 3\r\n"), EndsWith("\r\n\r\n")));
  ready_ = false;
  EXPECT_THAT(Ask("/readyz"), StartsWith("HTTP/1.1 503 "));
}

TEST_F(HttpTest, OtherHostsAreMisdirectedAndCounted) {
  for (const char* host : {"evil.example", "evil.example:80", "localhost.evil.example", "10.1.2.3"})
    EXPECT_THAT(Ask("/status.json", host), AllOf(StartsWith("HTTP/1.1 421 "), HasSubstr("http_hosts")))
        << host;
  EXPECT_EQ(Refused(), 4U);
  for (const char* host : {"localhost:1", "127.0.0.1", "[::1]:5", "NAMED.example."})
    EXPECT_THAT(Ask("/status.json", host), StartsWith("HTTP/1.1 200 ")) << host;
  EXPECT_EQ(Refused(), 4U);
}

TEST_F(HttpTest, SilentConnectionsHoldNobodyUp) {
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 300; ++i) {  // more than it keeps
    silent.push_back(Connect());
    if (i % 2 == 0) Send(silent.back(), "GET /healthz HTTP/1.1\r\nHost:");
    if (i % 10 == 0) {
      EXPECT_THAT(Ask("/healthz"), StartsWith("HTTP/1.1 200 ")) << i;
    }
  }
  // Each of them is closed within its deadline, whether it was pushed out or was late.
  for (const UniqueFd& fd : silent) EXPECT_EQ(Receive(fd), "");
  EXPECT_GT(Refused(), 0U);
}

TEST_F(HttpTest, WhoDoesNotReadItsAnswerHoldsNobodyUp) {
  constexpr size_t kBytes = size_t{8} << 20;  // more than the kernel buffers for who has a small buffer
  constexpr int kSmall = 4096;
  status_.assign(kBytes, 'x');
  std::vector<UniqueFd> lazy;
  for (int i = 0; i < 80; ++i) {
    lazy.push_back(Connect(kSmall));
    Send(lazy.back(), "GET /status.json HTTP/1.1\r\nHost: localhost\r\n\r\n");
  }
  EXPECT_THAT(Ask("/healthz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(Ask("/status.json").size() >> 20, kBytes >> 20) << "whoever reads gets all of it";
}

TEST_F(HttpTest, FiguresAreMadeOnceForManyScrapes) {
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 500; ++i) EXPECT_THAT(Ask("/metrics"), StartsWith("HTTP/1.1 200 "));
  const auto periods = (std::chrono::steady_clock::now() - began) / HttpPages::kMaxPageAge;
  EXPECT_LE(collected_, periods + 2);
  EXPECT_GE(collected_, 1);
}

TEST_F(HttpTest, LongHeadsAndOtherMethodsAreRefused) {
  EXPECT_THAT(Ask("/" + std::string(9000, 'a')), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(Ask("/", "localhost", "POST"),
              AllOf(StartsWith("HTTP/1.1 405 "), HasSubstr("Allow: GET, HEAD\r\n")));
  const UniqueFd fd = Connect();
  Send(fd, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(Receive(fd), StartsWith("HTTP/1.1 400 "));
}

TEST_F(HttpTest, LineFeedsAloneAreRefusedAtOnce) {
  for (const std::string_view lines : {"GET /healthz HTTP/1.1\nHost: localhost\n\n", "\n"}) {
    const UniqueFd fd = Connect();
    Send(fd, lines);
    EXPECT_THAT(Receive(fd), AllOf(StartsWith("HTTP/1.1 400 "), HasSubstr("carriage return")));
  }
  EXPECT_EQ(Refused(), 2U);
}

TEST_F(HttpTest, ServesWholeUrisAsProxiesSendThem) {
  const auto ask = [this](const std::string& uri, const std::string& host) {
    const UniqueFd fd = Connect();
    Send(fd, "\r\nGET " + uri + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
    return Receive(fd);
  };
  EXPECT_THAT(ask("http://localhost/healthz", "evil.example"), EndsWith("ok\n"));
  EXPECT_THAT(ask("http://evil.example/healthz", "localhost"), StartsWith("HTTP/1.1 421 "));
}

TEST_F(HttpTest, HeadMayComeByteByByte) {
  const UniqueFd fd = Connect();
  for (const char c : std::string_view("GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n")) Send(fd, {&c, 1});
  EXPECT_THAT(Receive(fd), EndsWith("ok\n"));
  const UniqueFd other = Connect();
  Send(other, "\r\n\r\nGET /healthz HTTP/1.0\r\nHost: localhost\r\n\r");
  Send(other, "\n");
  EXPECT_THAT(Receive(other), EndsWith("ok\n"));
}

TEST_F(HttpTest, EndsWithConnectionsOpen) {
  const UniqueFd silent = Connect();
  EXPECT_THAT(Ask("/healthz"), EndsWith("ok\n"));
  server_.reset();
  EXPECT_EQ(Receive(silent), "");
}

TEST_F(HttpTest, PortInUseIsNamed) {
  const std::string listen = "127.0.0.1:" + std::to_string(server_->port());
  EXPECT_THAT(HttpServer::Create({listen, {}, {}, {}, {}, &refusals_}),
              StatusIs(Code::kUnavailable, AllOf(HasSubstr(listen), HasSubstr("change http_listen"))));
}

}  // namespace
}  // namespace pinfeed
