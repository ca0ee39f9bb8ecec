// SPDX-License-Identifier: Apache-2.0
#include "server/net/client_frames.h"

#include <algorithm>

namespace pinfeed {
namespace {

// The costs of frames, in units of UserCredit: roughly what gRPC spends on each. The attacks in tests/load
// check that these costs are high enough (decision 0026).
constexpr uint32_t kCallCost = 4;
constexpr uint32_t kResetCost = 40;
constexpr uint32_t kDataCost = 1;
constexpr uint32_t kOtherCost = 4;
constexpr uint32_t kBytesPerUnit = 512;        // of payload
constexpr uint32_t kHeaderBytesPerUnit = 128;  // of a header block, where one byte can expand to many

constexpr uint32_t kStreamMask = 0x7FFFFFFF;

uint8_t ByteAt(std::string_view bytes, size_t index) {
  return static_cast<uint8_t>(bytes[index]);
}

bool HasFlag(const FrameHeader& frame, uint8_t flag) {
  return (frame.flags & flag) != 0;
}

uint32_t CostOf(const FrameHeader& frame) {
  switch (frame.type) {
    case FrameType::kHeaders:
    case FrameType::kContinuation:
      return kCallCost + frame.length / kHeaderBytesPerUnit;
    case FrameType::kResetStream:
      return kResetCost;
    case FrameType::kData:
      // An empty DATA frame carries nothing, so it costs as much as a control frame.
      return (frame.length > 0 || HasFlag(frame, kEndStream) ? kDataCost : kOtherCost) +
             frame.length / kBytesPerUnit;
    default:
      return kOtherCost + frame.length / kBytesPerUnit;
  }
}

// The required length of a frame of this type, or kAny.
constexpr uint32_t kAny = UINT32_MAX;
uint32_t LengthOf(FrameType type) {
  switch (type) {
    case FrameType::kPriority:
      return 5;
    case FrameType::kResetStream:
    case FrameType::kWindowUpdate:
      return 4;
    case FrameType::kPing:
      return 8;
    default:
      return kAny;
  }
}

enum class Streams : uint8_t { kConnection, kCalls, kBoth };
Streams StreamsOf(FrameType type) {
  switch (type) {
    case FrameType::kSettings:
    case FrameType::kPing:
    case FrameType::kGoAway:
      return Streams::kConnection;
    case FrameType::kData:
    case FrameType::kHeaders:
    case FrameType::kPriority:
    case FrameType::kResetStream:
    case FrameType::kContinuation:
      return Streams::kCalls;
    default:
      return Streams::kBoth;
  }
}

std::string Text(const FrameHeader& frame) {
  return "a frame of type " + std::to_string(static_cast<unsigned>(frame.type)) + " with " +
         std::to_string(frame.length) + " bytes on stream " + std::to_string(frame.stream);
}

}  // namespace

FrameHeader ParseFrameHeader(std::string_view bytes) {
  FrameHeader frame;
  frame.length = static_cast<uint32_t>(ByteAt(bytes, 0) << 16 | ByteAt(bytes, 1) << 8 | ByteAt(bytes, 2));
  frame.type = static_cast<FrameType>(ByteAt(bytes, 3));
  frame.flags = ByteAt(bytes, 4);
  for (size_t i = 5; i < kFrameHeaderBytes; ++i) frame.stream = frame.stream << 8 | ByteAt(bytes, i);
  frame.stream &= kStreamMask;
  return frame;
}

ClientFrameChecker::Segment ClientFrameChecker::Next(std::string_view bytes) {
  Segment segment;
  if (!preface_passed_) {
    const size_t have = std::min(bytes.size(), kHttp2Preface.size());
    if (bytes.substr(0, have) != kHttp2Preface.substr(0, have)) {
      segment.fault = "bytes that are not an HTTP/2 preface";
    } else if (have == kHttp2Preface.size()) {
      preface_passed_ = true;
      segment.bytes = have;
    }
    return segment;
  }
  if (payload_left_ > 0) {
    segment.bytes = std::min<size_t>(bytes.size(), payload_left_);
    payload_left_ -= static_cast<uint32_t>(segment.bytes);
    return segment;
  }
  if (bytes.size() < kFrameHeaderBytes) return segment;
  return AcceptHeader(ParseFrameHeader(bytes));
}

std::string ClientFrameChecker::HeaderFault(const FrameHeader& frame) const {
  if (frames_ == 0 && (frame.type != FrameType::kSettings || HasFlag(frame, kAck)))
    return "a first frame that is not SETTINGS";
  if (frame.length > kMaxFrameBytes) return Text(frame) + ": the limit is " + std::to_string(kMaxFrameBytes);
  if ((block_stream_ != 0) != (frame.type == FrameType::kContinuation) ||
      frame.type == FrameType::kPushPromise)
    return Text(frame) + ", which may not come here";
  const Streams streams = StreamsOf(frame.type);
  if ((streams == Streams::kConnection && frame.stream != 0) ||
      (streams == Streams::kCalls && frame.stream == 0))
    return Text(frame) + ": not allowed on that stream";
  const uint32_t length = LengthOf(frame.type);
  if (length != kAny && frame.length != length)
    return Text(frame) + ": the length must be " + std::to_string(length);
  switch (frame.type) {
    case FrameType::kSettings:
      if (frame.length % 6 != 0 || frame.length > (HasFlag(frame, kAck) ? 0 : kMaxSettingsBytes))
        return Text(frame) + ": invalid length of SETTINGS";
      break;
    case FrameType::kHeaders:
      if (frame.stream % 2 == 0 || frame.stream <= last_call_)
        return Text(frame) + ": new streams must have odd, rising numbers";
      break;
    case FrameType::kContinuation:
      if (frame.stream != block_stream_) return Text(frame) + " inside the header block of another stream";
      if (block_frames_ >= kMaxBlockFrames || block_bytes_ + frame.length > kMaxBlockBytes) {
        return "a header block of more than " + std::to_string(kMaxBlockFrames) + " frames or " +
               std::to_string(kMaxBlockBytes) + " bytes";
      }
      break;
    // A RST_STREAM may be of a call that a gRPC client cancelled before it opened its stream, which RFC 9113
    // (5.1) does not allow.
    case FrameType::kData:
      if (frame.stream > last_call_) return Text(frame) + ": that stream was never opened";
      break;
    default:
      break;
  }
  return {};
}

ClientFrameChecker::Segment ClientFrameChecker::AcceptHeader(const FrameHeader& frame) {
  Segment segment;
  segment.fault = HeaderFault(frame);
  if (!segment.fault.empty()) return segment;
  ++frames_;
  payload_left_ = frame.length;
  segment.bytes = kFrameHeaderBytes;
  segment.cost = CostOf(frame);
  if (frame.type == FrameType::kHeaders) {
    last_call_ = frame.stream;
    open_calls_.push_back(frame.stream);
    segment.opens_call = true;
    block_bytes_ = block_frames_ = 0;
  }
  if (frame.type == FrameType::kHeaders || frame.type == FrameType::kContinuation) {
    block_bytes_ += frame.length;
    ++block_frames_;
    block_stream_ = HasFlag(frame, kEndHeaders) ? 0 : frame.stream;
  }
  if (frame.type == FrameType::kResetStream && EndCall(frame.stream)) segment.ended_call = frame.stream;
  if (frame.type == FrameType::kData) {
    segment.message_call = frame.stream;
    segment.message_bytes = frame.length;
  }
  return segment;
}

bool ClientFrameChecker::EndCall(uint32_t stream) {
  const auto found = std::find(open_calls_.begin(), open_calls_.end(), stream);
  if (found == open_calls_.end()) return false;
  open_calls_.erase(found);
  return true;
}

std::vector<uint32_t> ServerFrameTracker::Scan(std::string_view bytes) {
  std::vector<uint32_t> ended;
  while (!bytes.empty()) {
    if (payload_left_ > 0) {
      const size_t skipped = std::min<size_t>(bytes.size(), payload_left_);
      payload_left_ -= static_cast<uint32_t>(skipped);
      bytes.remove_prefix(skipped);
      continue;
    }
    const size_t more = std::min(bytes.size(), kFrameHeaderBytes - header_.size());
    header_.append(bytes.substr(0, more));
    bytes.remove_prefix(more);
    if (header_.size() < kFrameHeaderBytes) break;
    const FrameHeader frame = ParseFrameHeader(header_);
    header_.clear();
    payload_left_ = frame.length;
    const bool headers = frame.type == FrameType::kHeaders;
    if (headers || frame.type == FrameType::kContinuation) block_ended_ = HasFlag(frame, kEndHeaders);
    const bool may_end = headers || frame.type == FrameType::kData;
    if (frame.type == FrameType::kResetStream || (may_end && HasFlag(frame, kEndStream)))
      ended.push_back(frame.stream);
  }
  return ended;
}

}  // namespace pinfeed
