// SPDX-License-Identifier: Apache-2.0
// How the requests of a batcher's clients end.
#pragma once

#include <array>
#include <cstdint>

namespace pinfeed {

// How a request ended.
enum class RequestEnd : uint8_t {
  kAnswered,
  kRefused,       // too large, the wrong size, or the queue was full
  kBadInput,      // its input could not be decoded or transformed
  kDeadline,      // its deadline passed
  kCancelled,     // by its client
  kClientGone,    // its client ended
  kConsumerGone,  // the process that had taken its batch ended, or nobody answered it for kMaxBatches
  kModelError,    // the consumer answered with an error, or with too large an answer
  kFeedEnded,     // the feed ended or drains
};
inline constexpr std::array kRequestEndNames = {"answered",      "refused",     "bad_input",
                                                "deadline",      "cancelled",   "client_gone",
                                                "consumer_gone", "model_error", "feed_ended"};

}  // namespace pinfeed
