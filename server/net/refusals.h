// SPDX-License-Identifier: Apache-2.0
// Counts what the daemon refused, by reason, for the metrics and for a rate-limited log.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "common/base/sync.h"

namespace pinfeed {

enum class Refusal : uint8_t {
  kUid,  // the peer's user may not connect
  // a call to open a feed, list datasets or operate the daemon was answered with an error; or a process with
  // a good token may not attach as producer, or to a batcher
  kRequest,
  kFrame,        // a lifeline frame of wrong size, magic or kind, or with descriptors
  kToken,        // a token that opens no session of this process
  kExpired,      // a session whose lifeline was never connected
  kDescriptors,  // no descriptor was left for a connection
  kHttp,         // an invalid HTTP request, for another host, or too slow while others waited
  kCertificate,  // at the admin port: a failed handshake, or a call by an unlisted name
  kHttp2,        // a gRPC connection that broke a rule of HTTP/2 or began too late
};
inline constexpr size_t kRefusalKinds = 9;
// The label in metrics: "uid", "request", ...
std::string_view RefusalName(Refusal refusal);

using RefusalCounts = std::array<uint64_t, kRefusalKinds>;
inline constexpr size_t kCodes = 17;  // the number of values of Code
using CodeCounts = std::array<uint64_t, kCodes>;
// The code's index in CodeCounts. A value outside the enumeration counts as kUnknown.
size_t CodeIndex(Code code);

// Purpose: counts refusals. Logs at most one per second of each kind, with the number suppressed since.
// Threads: any. Errors: none.
class Refusals {
 public:
  void Count(Refusal refusal, const std::string& text) PF_EXCLUDES(mutex_);
  // Counts a kRequest, and its error code.
  void CountRequest(const std::string& who, const Status& error);
  RefusalCounts counts() const;
  CodeCounts codes() const;

 private:
  struct Kind {
    std::chrono::steady_clock::time_point next_log;
    uint64_t suppressed = 0;
  };

  std::array<std::atomic<uint64_t>, kRefusalKinds> counts_{};
  std::array<std::atomic<uint64_t>, kCodes> codes_{};
  Mutex mutex_;
  std::array<Kind, kRefusalKinds> kinds_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
