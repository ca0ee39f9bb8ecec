// SPDX-License-Identifier: Apache-2.0
// Checks a client's HTTP/2 bytes (RFC 9113) before gRPC sees them. In: bytes. Out: how many may be forwarded
// and their cost, or the protocol fault.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pinfeed {

inline constexpr size_t kFrameHeaderBytes = 9;
inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kResetStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};
inline constexpr uint8_t kEndStream = 0x1;   // on DATA and HEADERS
inline constexpr uint8_t kAck = 0x1;         // on SETTINGS and PING
inline constexpr uint8_t kEndHeaders = 0x4;  // on HEADERS and CONTINUATION

struct FrameHeader {
  uint32_t length = 0;
  FrameType type = FrameType::kData;  // may hold an unknown type
  uint8_t flags = 0;
  uint32_t stream = 0;
};
// Precondition: `bytes` holds at least kFrameHeaderBytes.
FrameHeader ParseFrameHeader(std::string_view bytes);

// Purpose: checks the preface and every frame header, and tracks the open calls. gRPC 1.51 bounds neither
// header blocks nor its work for frames that carry no request. Threads: one at a time. Errors:
// Segment::fault. Invariant: forwarded bytes obey the limits below, however the input was split.
class ClientFrameChecker {
 public:
  static constexpr uint32_t kMaxFrameBytes = 16384;  // HTTP/2's default, which gRPC does not raise
  static constexpr uint32_t kMaxSettingsBytes = 600;
  // gRPC limits metadata to 8 KiB per frame, but does not limit the sum over a block's frames.
  static constexpr uint32_t kMaxBlockBytes = 32768;
  static constexpr uint32_t kMaxBlockFrames = 8;
  // gRPC allows 8 at a time. A client that has not read that setting yet may open more.
  static constexpr size_t kMaxOpenCalls = 32;

  // Bytes at the front of the input that are forwarded together or not at all.
  struct Segment {
    size_t bytes = 0;  // 0: incomplete, more input is needed
    uint32_t cost = 0;
    bool opens_call = false;
    uint32_t ended_call = 0;    // that the client cancels; 0: none
    uint32_t message_call = 0;  // whose message `message_bytes` belong to, which follow the segment
    uint32_t message_bytes = 0;
    std::string fault;  // if not empty, nothing more of the connection may be forwarded
  };
  // Call again with the bytes that follow the segment.
  Segment Next(std::string_view bytes);

  // Whether the preface and the first frame (SETTINGS) are complete.
  bool begun() const { return frames_ > 0 && (frames_ > 1 || payload_left_ == 0); }
  // The call opened by the last Segment.
  uint32_t last_call() const { return last_call_; }
  // Records that the server ended the call. Returns false if the call was not open.
  bool EndCall(uint32_t stream);
  const std::vector<uint32_t>& open_calls() const { return open_calls_; }

 private:
  Segment AcceptHeader(const FrameHeader& frame);
  std::string HeaderFault(const FrameHeader& frame) const;

  bool preface_passed_ = false;
  uint64_t frames_ = 0;
  uint32_t payload_left_ = 0;
  uint32_t block_stream_ = 0;  // of the unfinished header block; 0: none
  uint32_t block_bytes_ = 0;
  uint32_t block_frames_ = 0;
  uint32_t last_call_ = 0;
  std::vector<uint32_t> open_calls_;  // at most kMaxOpenCalls
};

// Purpose: follows the frames that gRPC sends. Threads: one at a time. Errors: none: gRPC is trusted.
class ServerFrameTracker {
 public:
  // Returns the calls that end within `bytes`.
  std::vector<uint32_t> Scan(std::string_view bytes);
  // Whether the daemon may insert a frame of its own here.
  bool between_frames() const { return header_.empty() && payload_left_ == 0 && block_ended_; }

 private:
  std::string header_;  // of the next frame, as far as received
  uint32_t payload_left_ = 0;
  bool block_ended_ = true;
};

}  // namespace pinfeed
