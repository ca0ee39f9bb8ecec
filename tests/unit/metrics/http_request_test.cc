// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/http_request.h"

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

int FaultOf(std::string_view head) {
  const std::variant<HttpRequest, HttpFault> parsed = ParseHttpHead(head);
  const auto* const fault = std::get_if<HttpFault>(&parsed);
  return fault == nullptr ? 0 : fault->code;
}

TEST(HttpRequestTest, AsksForAPathByAHost) {
  const auto parsed =
      ParseHttpHead("HEAD /metrics?x=1 HTTP/1.1\r\nAccept: */*\r\nhOsT:\t LocalHost:9467 \r\n\r\n");
  ASSERT_TRUE(std::holds_alternative<HttpRequest>(parsed));
  const auto& request = std::get<HttpRequest>(parsed);
  EXPECT_FALSE(request.with_body);
  EXPECT_EQ(request.path, "/metrics");
  EXPECT_EQ(request.host, "localhost");
}

TEST(HttpRequestTest, WhatIsNoRequestIsRefused) {
  for (const std::string_view head : {"\r\n\r\n",
                                      "GET\r\n\r\n",
                                      "GET /\r\nHost: a\r\n\r\n",
                                      "GET  HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET http://u@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET http://a:b/ HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET http://a/#b HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET http://a/ HTTP/1.1\r\n\r\n",
                                      "GET http:a HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET a/ HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET * HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET /#b HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET / HTTP/1.10\r\nHost: a\r\n\r\n",
                                      "GET / HTTP/1.x\r\nHost: a\r\n\r\n",
                                      "GET / HTTP/1.1\r\nHost: a\r\nX: b\nY: c\r\n\r\n",
                                      "GET / HTTP/1.1\nHost: a\r\n\r\n",
                                      "GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n",
                                      "GET / HTTP/1.1\r\nHost: a\r\nX: \x1b[2J\r\n\r\n",
                                      "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n\tfolded\r\n\r\n",
                                      "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
                                      "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET / HTTP/1.1\r\n\r\n",
                                      "GET / HTTP/1.1\r\nHost:\r\n\r\n",
                                      "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
                                      "GET / HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n",
                                      "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
                                      "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
                                      "GET / HTTP/1.1\r\nHost: a\nb\r\n\r\n",
                                      "PRI * HTTP/2.0x\r\nHost: a\r\n\r\n",
                                      "GET / FTP/1.1\r\nHost: a\r\n\r\n"}) {
    EXPECT_NE(FaultOf(head), 0) << head;
  }
  EXPECT_EQ(FaultOf("POST / HTTP/1.1\r\nHost: a\r\n\r\n"), 405);
  EXPECT_EQ(FaultOf("PRI * HTTP/2.0\r\nHost: a\r\n\r\n"), 505);
  EXPECT_EQ(FaultOf("GET / HTTP/1.0\r\nHost: a\r\n\r\n"), 0);
}

TEST(HttpRequestTest, AWholeUriNamesTheHost) {
  const auto path_and_host = [](std::string_view target) {
    const auto parsed = ParseHttpHead("GET " + std::string(target) + " HTTP/1.1\r\nHost: other\r\n\r\n");
    const auto* const request = std::get_if<HttpRequest>(&parsed);
    return request == nullptr ? std::string("refused") : request->path + " of " + request->host;
  };
  EXPECT_EQ(path_and_host("http://Node7:9467/metrics?x=1"), "/metrics of node7");
  EXPECT_EQ(path_and_host("HTTP://[::1]/"), "/ of ::1");
  EXPECT_EQ(path_and_host("http://a"), "/ of a");
  EXPECT_EQ(path_and_host("http://a?x=/y"), "/ of a");
  EXPECT_EQ(path_and_host("/http://a"), "/http://a of other");
}

TEST(HttpRequestTest, ValuesHoldNoControlCharacters) {
  EXPECT_EQ(FaultOf(std::string_view("GET / HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n", 35)), 400);
  EXPECT_EQ(FaultOf("GET / HTTP/1.1\r\nHost: a\r\nX: b\x7f\r\n\r\n"), 400);
  EXPECT_EQ(FaultOf("GET / HTTP/1.1\r\nHost: a\r\nX:\tb \xe4\r\n\r\n"), 0);
}

TEST(HttpRequestTest, WhatRecipientsAreToBearIsBorne) {
  EXPECT_EQ(FaultOf("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"), 0) << "an empty line";
  EXPECT_EQ(FaultOf("GET / HTTP/1.2\r\nHost: a\r\n\r\n"), 0) << "a later minor version";
}

TEST(HttpRequestTest, LineFeedsAloneAreSeen) {
  for (const std::string_view bare : {"\n", "GET / HTTP/1.1\nHost: a\n\n", "a\r\nb\n", "a\r\n\n"})
    EXPECT_TRUE(HasBareLineFeed(bare)) << bare;
  for (const std::string_view whole : {"", "a", "a\r", "a\r\nb", "\r\n\r\n"})
    EXPECT_FALSE(HasBareLineFeed(whole)) << whole;
}

TEST(HttpRequestTest, HostsHaveOneForm) {
  EXPECT_EQ(NormalHost("LOCALHOST."), "localhost");
  EXPECT_EQ(NormalHost("a.b-c_d:1"), "a.b-c_d");
  EXPECT_EQ(NormalHost("127.0.0.1:65535"), "127.0.0.1");
  EXPECT_EQ(NormalHost("[0:0::1]:80"), "::1");
  EXPECT_EQ(NormalHost("::1"), "::1");
  EXPECT_EQ(NormalHost("[FE80::1]"), "fe80::1");
  for (const std::string_view wrong :
       {"", ":80", "a:b", "a:123456", "[::1", "[::1]x", "[a]", "a b", "a/b", "\xff"})
    EXPECT_EQ(NormalHost(wrong), "") << wrong;
  EXPECT_EQ(NormalHost(std::string_view("127.0.0.1\0.evil", 15)), "");
  EXPECT_EQ(NormalHost(std::string(256, 'a')), "");
}

TEST(HttpHostsTest, ServesLoopbackTheAddressAndWhatIsConfigured) {
  const HttpHosts hosts("10.0.0.7", {"Node7", "node7.example.:9467"});
  for (const char* host :
       {"localhost", "127.0.0.1", "127.9.9.9", "::1", "10.0.0.7", "node7", "node7.example"})
    EXPECT_TRUE(hosts.Serves(host, "10.0.0.7")) << host;
  for (const char* host :
       {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.8", "0.0.0.0"})
    EXPECT_FALSE(hosts.Serves(host, "10.0.0.7")) << host;
  EXPECT_TRUE(HttpHosts("0.0.0.0", {}).Serves("10.0.0.8", "10.0.0.8")) << "the address that it came in at";
}

}  // namespace
}  // namespace pinfeed
