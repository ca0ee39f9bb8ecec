// SPDX-License-Identifier: Apache-2.0
// A reader's end of its link to the member that decodes on this GPU. In: batches to be fetched. Out: the same
// batches, decoded, in this process's memory.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "client/src/decode/decode_ring.h"
#include "client/src/decode/decoded_frame.h"
#include "common/base/result.h"
#include "common/os/wake_event.h"

namespace pinfeed {

// Purpose: fetches decoded batches, one after the other. Owns the socket. Threads: Fetch and Close from one;
// Stop from any. Errors: any ends the link, and nothing can be said of the memory: the other process may
// still write to it. Invariant: nothing that the other process sends is believed before it is checked.
class DecodedLink {
 public:
  // `lifeline`: of this process's session, open until Stop. `bytes`: of a decoded batch.
  static Result<std::unique_ptr<DecodedLink>> Create(UniqueLink socket, int lifeline, uint64_t bytes);

  // Has a whole batch written to its memory. Waits for that as long as the daemon is there, which ends the
  // link of a member that gets no more batches. Returns the images that could not be decoded. kCancelled
  // after Stop.
  Result<DecodeRing::Failures> Fetch(const DecodeRing::Unit& unit);
  // After a Fetch that failed: whether that is why.
  bool daemon_is_gone() const { return daemon_is_gone_; }
  // Ends this Fetch and all others.
  void Stop() { stop_.Set(); }
  void Close() { socket_.reset(); }

 private:
  DecodedLink(UniqueLink socket, int lifeline, WakeEvent stop, uint64_t bytes)
      : socket_(std::move(socket)), lifeline_(lifeline), stop_(std::move(stop)), bytes_(bytes) {}
  Status AwaitMessage();

  UniqueLink socket_;
  const int lifeline_;
  const WakeEvent stop_;
  const uint64_t bytes_;
  std::array<bool, DecodeRing::kEntries> exported_{};  // the other process has its memory
  bool daemon_is_gone_ = false;
  std::vector<std::byte> buffer_;
};

}  // namespace pinfeed
