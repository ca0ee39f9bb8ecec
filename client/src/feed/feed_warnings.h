// SPDX-License-Identifier: Apache-2.0
// What a trainer is warned of while it takes batches. In: what a feed sees. Out: lines of the client's log.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "client/src/base/unix_socket.h"
#include "client/src/decode/decode_ring.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: warns a trainer of what it can change, rarely enough to be read. Threads: one at a time.
class FeedWarnings {
 public:
  // A batch was taken. Warns of bad samples that are not in it, or are zeros, and of those before; at the end
  // of an epoch of all, but not of one shortly after another. Says once what it means if a batch has no other
  // samples.
  void SamplesAreBad(const BatchDescriptor& batch);
  // No batch has come for `waited`. Warns if that is long and the trainer holds all slots.
  void MayHoldAll(std::chrono::nanoseconds waited, uint32_t held, uint32_t slots);
  // No batch has come for `waited`. Warns if that is very long, whatever the reason: the daemon may be
  // stopped, or wait for a disk or another process. `held_of_group`: batches that this member of a group
  // holds.
  void NoBatchComes(std::chrono::nanoseconds waited, const std::string& daemon_address,
                    uint32_t held_of_group);
  // A published batch has not been decoded for `waited`. Warns if that is long.
  void DecoderIsSlow(std::chrono::nanoseconds waited, uint32_t held);
  // A daemon that was lost `away` ago was tried again. Warns if it refuses, or is away for very long.
  void NotReconnected(std::chrono::nanoseconds away, const std::string& daemon_address, const Status& tried);
  // A batch has zeros in place of images. The daemon does not know of them: it published the batch as good.
  void ImagesAreZeroed(const DecodeRing::Outcome& outcome);

 private:
  SteadyTime next_of_waiting_{};
  SteadyTime next_of_silence_{};
  SteadyTime next_of_tries_{};
  SteadyTime next_of_zeroed_{};
  uint64_t zeroed_images_ = 0;
  SteadyTime next_of_bad_{};
  SteadyTime next_of_epochs_{};
  uint64_t skipped_samples_ = 0;
  uint64_t zeroed_samples_ = 0;
  uint64_t told_bad_ = 0;  // samples
  bool said_empty_ = false;
};

}  // namespace pinfeed
