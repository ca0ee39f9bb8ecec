// SPDX-License-Identifier: Apache-2.0
// What the daemon turned away, by reason: for the metrics, and for the log at a bounded rate.
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
  kUid,          // the peer's user is not served
  kRequest,      // an OpenFeed or Trace that was answered with an error
  kFrame,        // a lifeline frame of wrong size, magic or kind, or with descriptors
  kToken,        // a token that opens no session of this process
  kExpired,      // a session whose lifeline never came
  kDescriptors,  // no descriptor was left to accept a connection
  kHttp,         // an HTTP request that is none, for another host, or none in time while others came
  kCertificate,  // at the admin endpoint, a handshake that failed, or a call by a name that is not listed
  kHttp2,        // a gRPC connection that was closed for what it sent, or for beginning too late
};
inline constexpr size_t kRefusalKinds = 9;
// "uid", "request", ...: the label in metrics.
std::string_view RefusalName(Refusal refusal);

using RefusalCounts = std::array<uint64_t, kRefusalKinds>;
inline constexpr size_t kCodes = 17;  // of Code
using CodeCounts = std::array<uint64_t, kCodes>;
// The code's place in CodeCounts; that of kUnknown for a value outside the enumeration.
size_t CodeIndex(Code code);

// Purpose: counts refusals and logs at most one a second of each kind, with the number left out since.
// Threads: any. Errors: none.
class Refusals {
 public:
  void Count(Refusal refusal, const std::string& text) PF_EXCLUDES(mutex_);
  // Counts a kRequest, and its error's code.
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
