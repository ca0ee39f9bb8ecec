// SPDX-License-Identifier: Apache-2.0
// Checks a client's HTTP/2 bytes (RFC 9113) before gRPC sees them. In: bytes. Out: how many may pass, at
// what cost, or what is wrong with them.
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
inline constexpr uint8_t kEndStream = 0x1;   // of DATA and HEADERS
inline constexpr uint8_t kAck = 0x1;         // of SETTINGS and PING
inline constexpr uint8_t kEndHeaders = 0x4;  // of HEADERS and CONTINUATION

struct FrameHeader {
  uint32_t length = 0;
  FrameType type = FrameType::kData;  // or any other number
  uint8_t flags = 0;
  uint32_t stream = 0;
};
// `bytes` has kFrameHeaderBytes at least.
FrameHeader ParseFrameHeader(std::string_view bytes);

// Purpose: checks the preface and the header of every frame; remembers which calls are open. gRPC 1.51 itself
// bounds neither header blocks nor what it does for frames that ask for nothing. Threads: one at a time.
// Errors: Segment::fault. Invariant: what passed keeps the limits below, however the bytes were split.
class ClientFrameChecker {
 public:
  static constexpr uint32_t kMaxFrameBytes = 16384;  // HTTP/2's default, which gRPC does not raise
  static constexpr uint32_t kMaxSettingsBytes = 600;
  // gRPC refuses metadata above 8 KiB of the frames of a block, each for itself.
  static constexpr uint32_t kMaxBlockBytes = 32768;
  static constexpr uint32_t kMaxBlockFrames = 8;
  // gRPC offers 8 at a time; a client that has not read that yet may have more.
  static constexpr size_t kMaxOpenCalls = 32;

  // Bytes at the front that pass together or not at all.
  struct Segment {
    size_t bytes = 0;  // 0: more are needed to tell
    uint32_t cost = 0;
    bool opens_call = false;
    std::string fault;  // not empty: nothing of the connection may pass any more
  };
  // Each byte is looked at once: the next call begins behind the part.
  Segment Next(std::string_view bytes);

  // Whether the preface and the first frame, SETTINGS, have come whole.
  bool begun() const { return frames_ > 0 && (frames_ > 1 || payload_left_ == 0); }
  // The call that the last Segment opened.
  uint32_t last_call() const { return last_call_; }
  // The server has ended the call. False when it was not open.
  bool EndCall(uint32_t stream);
  const std::vector<uint32_t>& open_calls() const { return open_calls_; }

 private:
  Segment Enter(const FrameHeader& frame);
  std::string Fault(const FrameHeader& frame) const;

  bool preface_passed_ = false;
  uint64_t frames_ = 0;
  uint32_t payload_left_ = 0;
  uint32_t block_stream_ = 0;  // of a header block that has not ended; 0: none
  uint32_t block_bytes_ = 0;
  uint32_t block_frames_ = 0;
  uint32_t last_call_ = 0;
  std::vector<uint32_t> open_calls_;  // at most kMaxOpenCalls
};

// Purpose: follows the frames that gRPC sends, whatever they are. Threads: one at a time. Errors: none: gRPC
// is trusted.
class ServerFrameTracker {
 public:
  // The calls that end in the next bytes.
  std::vector<uint32_t> Scan(std::string_view bytes);
  // Whether a frame of one's own may follow.
  bool between_frames() const { return header_.empty() && payload_left_ == 0 && block_ended_; }

 private:
  std::string header_;  // of the next frame, as far as it has come
  uint32_t payload_left_ = 0;
  bool block_ended_ = true;
};

}  // namespace pinfeed
