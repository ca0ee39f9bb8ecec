// SPDX-License-Identifier: Apache-2.0
#include "server/net/client_frames.h"

#include <string>

#include "tests/support/testing.h"

namespace pinfeed {
namespace {

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, size_t length, bool whole = true) {
  std::string bytes;
  for (const int shift : {16, 8, 0}) bytes += static_cast<char>(length >> shift & 0xFF);
  bytes += static_cast<char>(type);
  bytes += static_cast<char>(flags);
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(stream >> shift & 0xFF);
  return whole ? bytes + std::string(length, 'x') : bytes;
}

const std::string kBegin = std::string(kHttp2Preface) + Frame(FrameType::kSettings, 0, 0, 6);

struct Seen {
  size_t passed = 0;
  uint32_t cost = 0;
  std::string fault;
};

// All of it, in pieces of so many bytes.
Seen Read(ClientFrameChecker& frames, const std::string& bytes, size_t piece = SIZE_MAX) {
  Seen seen;
  std::string have;
  for (size_t at = 0; at < bytes.size(); at += std::min(piece, bytes.size() - at)) {
    have += bytes.substr(at, piece);
    while (!have.empty()) {
      const ClientFrameChecker::Segment part = frames.Next(have);
      seen.cost += part.cost;
      seen.fault = part.fault;
      if (!part.fault.empty()) return seen;
      if (part.bytes == 0) break;
      seen.passed += part.bytes;
      have.erase(0, part.bytes);
    }
  }
  return seen;
}

std::string FaultOf(const std::string& bytes) {
  ClientFrameChecker frames;
  return Read(frames, kBegin + bytes).fault;
}

TEST(ClientFramesTest, ACallPassesHoweverItIsSplit) {
  const std::string call = kBegin + Frame(FrameType::kHeaders, 0, 1, 100) +
                           Frame(FrameType::kContinuation, kEndHeaders, 1, 50) +
                           Frame(FrameType::kData, kEndStream, 1, 5) + Frame(FrameType::kPing, 0, 0, 8);
  uint32_t cost = 0;
  for (const size_t piece : {SIZE_MAX, size_t{1}, size_t{7}}) {
    ClientFrameChecker frames;
    const Seen seen = Read(frames, call, piece);
    EXPECT_EQ(seen.fault, "");
    EXPECT_EQ(seen.passed, call.size());
    EXPECT_EQ(frames.open_calls(), std::vector<uint32_t>{1});
    EXPECT_TRUE(cost == 0 || cost == seen.cost);
    cost = seen.cost;
  }
}

TEST(ClientFramesTest, BeginsWithThePrefaceAndSettings) {
  for (const std::string& wrong :
       {std::string("GET / HTTP/1.1\r\n"), std::string("P!"), std::string(1, '\x16')}) {
    ClientFrameChecker frames;
    EXPECT_EQ(Read(frames, wrong).fault, "bytes that are not an HTTP/2 preface");
  }
  ClientFrameChecker frames;
  EXPECT_NE(Read(frames, std::string(kHttp2Preface) + Frame(FrameType::kPing, 0, 0, 8)).fault, "");
  ClientFrameChecker half;
  EXPECT_EQ(Read(half, kBegin.substr(0, kBegin.size() - 1)).fault, "");
  EXPECT_FALSE(half.begun());
  EXPECT_EQ(Read(half, kBegin.substr(kBegin.size() - 1)).passed, 1);
  EXPECT_TRUE(half.begun());
}

TEST(ClientFramesTest, FramesThatBreakTheRulesAreFaults) {
  const std::string call = Frame(FrameType::kHeaders, kEndHeaders, 3, 10);
  const std::string block = Frame(FrameType::kHeaders, 0, 3, 10);
  const std::vector<std::string> wrong = {
      Frame(FrameType::kData, 0, 1, ClientFrameChecker::kMaxFrameBytes + 1, false),
      Frame(static_cast<FrameType>(0xEE), 0, 0, 0xFFFFFF, false),
      Frame(FrameType::kPushPromise, kEndHeaders, 3, 10),
      Frame(FrameType::kContinuation, kEndHeaders, 1, 1),
      Frame(FrameType::kHeaders, kEndHeaders, 2, 10),
      Frame(FrameType::kHeaders, kEndHeaders, 0, 10),
      Frame(FrameType::kData, 0, 0, 1),
      Frame(FrameType::kData, 0, 1, 1),  // of no call
      Frame(FrameType::kPing, 0, 1, 8),
      Frame(FrameType::kPing, 0, 0, 7),
      Frame(FrameType::kSettings, 0, 0, 7),
      Frame(FrameType::kSettings, kAck, 0, 6),
      Frame(FrameType::kSettings, 0, 0, ClientFrameChecker::kMaxSettingsBytes + 6),
      Frame(FrameType::kWindowUpdate, 0, 0, 5),
      Frame(FrameType::kPriority, 0, 3, 4),
      call + Frame(FrameType::kHeaders, kEndHeaders, 3, 10),
      call + Frame(FrameType::kHeaders, kEndHeaders, 1, 10),
      block + Frame(FrameType::kPing, 0, 0, 8),
      block + Frame(FrameType::kContinuation, 0, 5, 10),
  };
  for (size_t i = 0; i < wrong.size(); ++i) EXPECT_NE(FaultOf(wrong[i]), "") << i;
}

TEST(ClientFramesTest, HeaderBlocksEnd) {
  std::string many = Frame(FrameType::kHeaders, 0, 1, 0);
  for (uint32_t i = 1; i < ClientFrameChecker::kMaxBlockFrames; ++i)
    many += Frame(FrameType::kContinuation, 0, 1, 0);
  EXPECT_EQ(FaultOf(many), "");
  EXPECT_NE(FaultOf(many + Frame(FrameType::kContinuation, kEndHeaders, 1, 0)), "");
  const std::string large = Frame(FrameType::kHeaders, 0, 1, ClientFrameChecker::kMaxFrameBytes) +
                            Frame(FrameType::kContinuation, 0, 1, ClientFrameChecker::kMaxFrameBytes);
  EXPECT_EQ(FaultOf(large), "");
  EXPECT_NE(FaultOf(large + Frame(FrameType::kContinuation, kEndHeaders, 1, 1)), "");
}

TEST(ClientFramesTest, CallsEndByEitherSide) {
  ClientFrameChecker frames;
  ServerFrameTracker server;
  EXPECT_EQ(Read(frames, kBegin).fault, "");
  for (const uint32_t stream : {1U, 3U, 5U})
    EXPECT_EQ(Read(frames, Frame(FrameType::kHeaders, kEndHeaders, stream, 10)).fault, "");
  EXPECT_EQ(Read(frames, Frame(FrameType::kResetStream, 0, 3, 4)).fault, "");
  EXPECT_EQ(frames.open_calls(), (std::vector<uint32_t>{1, 5}));
  EXPECT_EQ(Read(frames, Frame(FrameType::kResetStream, 0, 9, 4)).fault, "") << "cancelled, never opened";
  EXPECT_EQ(frames.open_calls(), (std::vector<uint32_t>{1, 5}));
  const std::string answer =
      Frame(FrameType::kSettings, 0, 0, 0) + Frame(FrameType::kHeaders, kEndHeaders, 1, 9) +
      Frame(FrameType::kData, 0, 1, 9) + Frame(FrameType::kHeaders, kEndHeaders | kEndStream, 1, 9) +
      Frame(FrameType::kResetStream, 0, 5, 4);
  std::vector<uint32_t> ended;
  for (const char byte : answer)
    for (const uint32_t stream : server.Scan(std::string_view(&byte, 1))) ended.push_back(stream);
  EXPECT_EQ(ended, (std::vector<uint32_t>{1, 5}));
  EXPECT_TRUE(server.between_frames());
  server.Scan(answer.substr(0, answer.size() - 1));
  EXPECT_FALSE(server.between_frames());
  EXPECT_TRUE(frames.EndCall(5));
  EXPECT_FALSE(frames.EndCall(5));
}

TEST(ClientFramesTest, WhatAsksForNothingCostsAsMuchAsACall) {
  const auto price_of = [](const std::string& bytes) {
    ClientFrameChecker frames;
    Read(frames, kBegin + Frame(FrameType::kHeaders, kEndHeaders, 1, 10));
    return Read(frames, bytes).cost;
  };
  const uint32_t call = price_of(Frame(FrameType::kHeaders, kEndHeaders, 3, 10));
  for (const FrameType type : {FrameType::kSettings, FrameType::kGoAway})
    EXPECT_GE(price_of(Frame(type, 0, 0, 0)), call);
  EXPECT_GE(price_of(Frame(FrameType::kPing, 0, 0, 8)), call);
  EXPECT_GE(price_of(Frame(FrameType::kWindowUpdate, 0, 0, 4)), call);
  EXPECT_GE(price_of(Frame(FrameType::kData, 0, 1, 0)), call);
  EXPECT_LT(price_of(Frame(FrameType::kData, kEndStream, 1, 5)), call);
  EXPECT_GE(price_of(Frame(FrameType::kResetStream, 0, 1, 4)), 10 * call);
  EXPECT_GE(price_of(Frame(FrameType::kHeaders, kEndHeaders, 3, ClientFrameChecker::kMaxFrameBytes)),
            30 * call);
}

}  // namespace
}  // namespace pinfeed
