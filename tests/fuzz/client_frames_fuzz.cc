// SPDX-License-Identifier: Apache-2.0
// Fuzz target: any bytes as what a client sends by HTTP/2, split anywhere. What passes keeps the limits, as a
// second look at it finds, and does not depend on the splits.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "common/base/status.h"
#include "server/net/client_frames.h"

namespace pinfeed {
namespace {

struct Passed {
  std::string bytes;
  uint64_t cost = 0;
  bool faulty = false;
};

Passed Read(std::string_view bytes, size_t piece) {
  ClientFrameChecker frames;
  Passed passed;
  std::string have;
  while (!bytes.empty() && !passed.faulty) {
    const size_t more = std::min(bytes.size(), piece);
    have.append(bytes.substr(0, more));
    bytes.remove_prefix(more);
    while (!have.empty()) {
      const ClientFrameChecker::Segment part = frames.Next(have);
      passed.faulty = !part.fault.empty();
      if (passed.faulty || part.bytes == 0) break;
      PF_CHECK(part.bytes <= have.size(), "only what has come passes");
      passed.cost += part.cost;
      passed.bytes += have.substr(0, part.bytes);
      have.erase(0, part.bytes);
      if (frames.open_calls().size() > ClientFrameChecker::kMaxOpenCalls)
        passed.faulty = true;  // as the guard does
      if (passed.faulty) break;
    }
  }
  return passed;
}

void CheckLimits(std::string_view bytes) {
  if (bytes.empty()) return;
  PF_CHECK(bytes.substr(0, kHttp2Preface.size()) == kHttp2Preface, "the preface passes whole");
  bytes.remove_prefix(kHttp2Preface.size());
  uint32_t block_bytes = 0;
  uint32_t block_frames = 0;
  bool in_block = false;
  while (bytes.size() >= kFrameHeaderBytes) {
    const FrameHeader frame = ParseFrameHeader(bytes);
    PF_CHECK(frame.length <= ClientFrameChecker::kMaxFrameBytes, "a frame is short");
    PF_CHECK(in_block == (frame.type == FrameType::kContinuation), "nothing comes amid a block");
    if (frame.type == FrameType::kHeaders || in_block) {
      block_bytes = (in_block ? block_bytes : 0) + frame.length;
      block_frames = (in_block ? block_frames : 0) + 1;
      PF_CHECK(block_bytes <= ClientFrameChecker::kMaxBlockBytes &&
                   block_frames <= ClientFrameChecker::kMaxBlockFrames,
               "a block is bounded");
      in_block = (frame.flags & kEndHeaders) == 0;
    }
    bytes.remove_prefix(std::min<size_t>(bytes.size(), kFrameHeaderBytes + frame.length));
  }
  PF_CHECK(bytes.empty(), "a frame's header passes whole");
}

}  // namespace
}  // namespace pinfeed

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pinfeed;  // NOLINT(google-build-using-namespace): libFuzzer wants the function outside
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Passed whole = Read(bytes, SIZE_MAX);
  CheckLimits(whole.bytes);
  const Passed split = Read(bytes, 1 + size % 13);
  PF_CHECK(whole.bytes == split.bytes && whole.cost == split.cost && whole.faulty == split.faulty,
           "splits change nothing");
  ServerFrameTracker server;
  for (const uint32_t stream : server.Scan(bytes))
    PF_CHECK(stream <= 0x7FFFFFFF, "a stream is a number of one");
  return 0;
}
