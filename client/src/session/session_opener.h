// SPDX-License-Identifier: Apache-2.0
// Opens the sessions of one feed. In: the spec and a position. Out: an attached session on the best backend
// that works in this process.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/src/base/fork_guard.h"
#include "client/src/decode/decode_engine.h"
#include "client/src/link/daemon.h"
#include "client/src/session/session.h"
#include "common/base/result.h"
#include "common/spec/feed_spec.h"

namespace pinfeed {

struct SessionOptions {
  std::string address;
  OpenRequest request;
  int device = -1;                  // CUDA ordinal of the GPU named by request.gpu_uuid; -1: host memory
  std::shared_ptr<const void> gpu;  // keeps the GPU's context alive
  Status gpu_error;                 // why the GPU is unusable, if it is
  // Opens what decodes images on the GPU; null: there is no GPU. Called once, and only if the spec asks for
  // it.
  std::function<Result<std::shared_ptr<DecodeEngine>>()> open_decoder;
  std::chrono::milliseconds open_timeout{10'000};
};

// Purpose: asks the daemon for a session, attaches it, and remembers which backends failed here. Owns: a
// share of the GPU's context, which a forked child leaves to its parent. Threads: one; all calls block, at
// most for the open timeout. Errors: the daemon's refusal, or why no offered backend works.
class SessionOpener {
 public:
  explicit SessionOpener(SessionOptions options) : options_(std::move(options)) {}
  ~SessionOpener();
  SessionOpener(const SessionOpener&) = delete;
  SessionOpener& operator=(const SessionOpener&) = delete;

  const std::string& address() const { return options_.address; }
  int device() const { return options_.device; }
  // The kind of what decodes images on the GPU; empty: nothing.
  std::string decoder() const { return decoder_ != nullptr ? decoder_->kind() : ""; }

  // Opens the feed's first session, at the cursor of the request. If the daemon is stopping, waits for the
  // next one.
  Result<std::shared_ptr<Session>> OpenFirst();
  // Opens a session at the cursor that continues the feed of `before`, else kFailedPrecondition.
  Result<std::shared_ptr<Session>> Open(const Cursor& cursor, const FeedOffer& before);
  // As Open, in place of the session of `before`. Returns null if that has to end first.
  Result<std::shared_ptr<Session>> Replace(const Cursor& cursor, const FeedOffer& before);

 private:
  // `before`: null for the first session. `replaces` is as in OpenRequest.
  Result<std::shared_ptr<Session>> OpenBy(SteadyTime deadline, const std::optional<Cursor>& cursor,
                                          const FeedOffer* before, uint64_t replaces = 0);
  // Adds to the daemon's refusal why this process has no GPU, which the daemon cannot know.
  Status WithGpuError(const Status& refused) const;
  // Opens the decoder if the spec asks for it.
  Status OpenDecoder();
  // Does without what does not work in this process. Returns false if there is no doing without it.
  bool GiveUp(Session::Unusable what, const FeedOffer& offer, const Status& why);
  void WarnOfFallback(const FeedOffer& offer) const;

  SessionOptions options_;
  const ForkGuard fork_guard_;
  std::shared_ptr<DecodeEngine> decoder_;
  std::string no_decoder_;   // why there is none, if one was asked for
  std::string no_resident_;  // why resident samples cannot be used here
  std::vector<std::pair<Backend, std::string>> failed_backends_;
  bool stopping_ = false;  // the daemon last tried said that it is stopping
};

}  // namespace pinfeed
