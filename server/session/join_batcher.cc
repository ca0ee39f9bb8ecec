// SPDX-License-Identifier: Apache-2.0
// The part of FeedOpener for batchers.
#include <algorithm>
#include <string>
#include <utility>

#include "common/base/quote.h"
#include "server/net/descriptor_room.h"
#include "server/session/open_feed.h"

namespace pinfeed {
namespace {

TensorSpec BytesTensor(const char* name, uint64_t bytes) {
  return {name, DType::kUint8, {static_cast<int64_t>(bytes)}};
}

}  // namespace

Result<BatcherPlace> FeedOpener::JoinBatcher(const Peer& peer, const JoinBatcherArguments& arguments) const {
  const std::string what = "join the batcher " + QuotePath(arguments.name);
  if (peer.pid == 0) {
    return FailedPrecondition(what +
                              ": the process is not visible to the daemon, so its end could not be seen; let "
                              "both share a PID namespace");
  }
  const std::shared_ptr<Feed> feed = parts_.feeds.FindGroup(peer.uid, arguments.name);
  BatcherPlace place{feed == nullptr ? nullptr : feed->producer().requests(), nullptr, arguments.consumer};
  if (place.queue == nullptr) {
    return NotFound(what + ": this user (uid " + std::to_string(peer.uid) +
                    ") has no batcher of that name; start its consumer first");
  }
  const BatcherSpec& spec = place.queue->spec();
  std::vector<TensorSpec> tensors;
  uint32_t slots = 1, samples = 1;
  if (arguments.consumer) {
    const std::vector<std::shared_ptr<Session>> sessions = parts_.sessions.All();
    const bool attached = std::ranges::any_of(sessions, [&](const std::shared_ptr<Session>& session) {
      return session->feed == feed && session->peer == peer && session->state == SessionState::kAttached;
    });
    if (!attached)
      return FailedPrecondition(what + " as a consumer: this process has no session of its feed");
    tensors = {BytesTensor("answers", spec.max_answer_bytes), {"lengths", DType::kInt64, {}}};
    samples = feed->layout().batch_size;
  } else {
    RETURN_IF_ERROR(place.queue->CheckRoom().WithContext(what));
    slots = arguments.slots;
    if (slots < kMinSlots || slots > kMaxSlots) {
      return InvalidArgument(what + ": slots: " + std::to_string(slots) + " is not within " +
                             std::to_string(kMinSlots) + " to " + std::to_string(kMaxSlots));
    }
    const uint64_t most = place.queue->max_request_bytes();
    const uint64_t bytes = spec.array ? most : std::min(arguments.max_request_bytes, most);
    if (bytes == 0) return InvalidArgument(what + ": max_request_bytes: 0 is less than any image has");
    tensors = {BytesTensor("request", bytes), BytesTensor("answer", spec.max_answer_bytes)};
  }
  ASSIGN_OR_RETURN(const BatchLayout layout, BatchLayout::Create(tensors, samples));
  ASSIGN_OR_RETURN(place.memory, HostArena::Create(layout, slots, /*shared=*/false, parts_.pool, peer.uid,
                                                   &parts_.quarantine)
                                     .WithContext(what));
  RETURN_IF_ERROR(
      CheckConnectionRoom(place.memory->fd(), "a place at a batcher takes four").WithContext(what));
  // A consumer's answers are read on a thread that must not wait for memory.
  if (arguments.consumer) RETURN_IF_ERROR(place.memory->PrepareForClient(0, samples));
  return place;
}

}  // namespace pinfeed
