// SPDX-License-Identifier: Apache-2.0
// Stages 3 to 5 of a batch: the N slots of a session, or of a group that shares them. In: filled pieces of a
// batch. Out: complete slots, visible to clients.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/spec/feed_spec.h"
#include "common/spec/tensor_spec.h"
#include "server/memory/client_process.h"

namespace pinfeed {

using ArenaId = std::array<std::byte, 16>;

// When the copy of a delivery ran (CLOCK_MONOTONIC). Zeros: there was no copy.
struct CopyTime {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
};

// Reads the release words of an arena's sessions.
class ReleaseReader {
 public:
  virtual ~ReleaseReader() = default;
  virtual void ReadReleases() = 0;
};

// Consecutive samples of a batch that are filled and delivered together.
struct Piece {
  uint32_t slot = 0;
  uint32_t begin = 0;  // range of samples, as indexes in the plan
  uint32_t end = 0;
  uint32_t memory = 0;  // which memory to fill; the arena assigns it
};

// Where a filled piece goes in its slot. Skipped samples leave no gaps.
struct SlotRange {
  uint32_t first = 0;    // slot index of the piece's first sample
  uint32_t samples = 0;  // number of samples, from the piece's first
  bool last = false;     // whether this is the batch's last piece
  // By tensor: rows that the piece has of a packed one, from the piece's first byte. Empty: none is packed.
  std::vector<uint64_t> packed_rows = {};
};

// Purpose: the memory of the slots, independent of its kind. Owns the memory.
// Threads: FillAddress and Deliver from any thread, concurrently for different pieces. The pieces of a slot
// are delivered in order.
// Errors: an error passed to `done` means that copies to a GPU have failed, and the daemon is about to stop.
// Invariant: memory that a client may have mapped is never unmapped under the client. It lives until the last
// mapping is gone, or until the client has reported that it is gone (Discard).
class Arena {
 public:
  virtual ~Arena() = default;

  virtual Backend backend() const = 0;
  // The maximum number of samples in a piece. By default, a piece is a whole batch.
  virtual uint32_t piece_samples() const { return layout_.batch_size; }
  // Assigns memory for filling a piece. Returns false if none is free; there may be some when another
  // delivery completes. Deliver or Return releases the memory. Any thread; does not block.
  virtual bool Take(Piece* /*piece*/) { return true; }
  virtual void Return(const Piece& /*piece*/) {}
  // The host memory to fill with the piece's samples of that tensor, stored without gaps; a packed tensor's
  // rows in any order. Preconditions: piece.slot < slot_count(); Take assigned memory to the piece; Prepare
  // succeeded for the samples that are touched.
  virtual std::byte* FillAddress(const Piece& piece, size_t tensor) = 0;
  // Allocates the memory for samples [begin, end) of the piece; both are indexes in the batch. May be slow on
  // first use. Any thread, concurrently for disjoint samples. kResourceExhausted when the host lacks the
  // memory, even though the pool granted it.
  virtual Status Prepare(const Piece& /*piece*/, uint32_t /*begin*/, uint32_t /*end*/) { return OkStatus(); }

  // Makes a piece visible to clients, then calls `done` exactly once, on this or another thread. The piece's
  // memory is the arena's again, from then on at the latest. On the host, the slot is the client's memory, so
  // `done` is called immediately.
  using Done = std::function<void(Status, CopyTime)>;
  virtual void Deliver(const Piece& piece, const SlotRange& range, Done done) = 0;

  // Frees what only filling takes. Nothing is filled or delivered afterwards. Precondition: every `done` was
  // called, the last one perhaps by the caller.
  virtual void EndFilling() {}

  // Set while no slot is free and the reader waits for releases. On the host this does nothing, because
  // clients signal releases with the doorbell. A GPU cannot do that, so the arena polls: it calls the reader
  // repeatedly from another thread. Any thread; does not block, and is called under the feed's lock.
  virtual void SetWaiting(const std::shared_ptr<ReleaseReader>& /*reader*/, bool /*waiting*/) {}

  // Frees the pages although a client may still have them mapped. Called for a client that reported that it
  // unmapped them. Does nothing where that is impossible. The arena is unusable afterwards.
  virtual void Discard() {}

  // Reports clients that ended, or were given up, without confirming that they unmapped the memory. Called at
  // most once, and never together with Discard. On the host, the kernel keeps mapped memory alive; memory of
  // a GPU may have to be quarantined.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): overriders keep them
  virtual void SetRemainingMappers(std::vector<ClientProcess> /*clients*/) {}

  // Returns the arena that a client on that GPU maps: this one, or the group's part on that GPU. Returns an
  // error that says why the client cannot use it. Any thread; may take a while.
  virtual Result<const Arena*> PartOn(const std::string& /*gpu_uuid*/) { return this; }
  // A client that got `part` from PartOn has left. A part of a group's memory is freed with its last client,
  // unless `keep`: then it has received batches and clients may rejoin. `remaining_mapper` is that client if
  // it has not confirmed that it unmapped the part. May take a while.
  virtual void ReleasePart(const Arena& /*part*/, bool /*keep*/,
                           // NOLINTNEXTLINE(performance-unnecessary-value-param): overriders keep it
                           std::optional<ClientProcess> /*remaining_mapper*/) {}

  // The descriptor that clients map, or -1 when the offer carries an IPC handle instead. Owned by the arena.
  virtual int fd() const = 0;
  virtual std::optional<std::array<std::byte, 64>> ipc_handle() const { return {}; }

  const ArenaId& id() const { return id_; }
  uint32_t slot_count() const { return slot_count_; }
  const BatchLayout& layout() const { return layout_; }
  uint64_t slot_stride() const { return layout_.slot_stride; }
  // The size of all slots. What a client maps may be longer (see mapped_bytes).
  uint64_t bytes() const { return slot_stride() * slot_count_; }
  virtual uint64_t mapped_bytes() const { return bytes(); }

 protected:
  Arena(const ArenaId& id, uint32_t slot_count, BatchLayout layout)
      : id_(id), slot_count_(slot_count), layout_(std::move(layout)) {}

 private:
  const ArenaId id_;
  const uint32_t slot_count_;
  const BatchLayout layout_;
};

}  // namespace pinfeed
