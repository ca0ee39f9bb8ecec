// SPDX-License-Identifier: Apache-2.0
// Stages 3 to 5 of the way of a batch: the N slots of a session (or of a group that shares them). In: filled
// pieces of a batch. Out: the slot they make up, visible to clients.
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

// When a delivery's copy was under way, by CLOCK_MONOTONIC. Zeros: there was none.
struct CopyTime {
  uint64_t begin_ns = 0;
  uint64_t end_ns = 0;
};

// Who looks at the release words of an arena's sessions.
class ReleaseReader {
 public:
  virtual ~ReleaseReader() = default;
  virtual void ReadReleases() = 0;
};

// Some of a batch's samples, one after the other, which are filled and delivered together.
struct Piece {
  uint32_t slot = 0;
  uint32_t begin = 0;  // its samples, by their index in the plan
  uint32_t end = 0;
  uint32_t memory = 0;  // where it is filled: the arena's to say
};

// Where a filled piece goes. The slot has no gaps: samples that were skipped leave none.
struct SlotRange {
  uint32_t first = 0;    // index in the slot of the piece's first sample
  uint32_t samples = 0;  // of the piece, from its first on
  bool last = false;     // of the batch's pieces
};

// Purpose: memory of the slots, whatever it is made of. Owns the memory. Threads: FillAddress and Deliver
// from any thread, for different pieces at once; the pieces of a slot are delivered in order. Errors: one
// that `done` gets means that the arena delivers nothing any more: what it copies with is lost, and the
// daemon about to end. Invariant: the memory a client may have mapped is never unmapped from the client's
// point of view: it lives until the last mapping is gone, or until the client said that it is (Discard).
class Arena {
 public:
  virtual ~Arena() = default;

  virtual Backend backend() const = 0;
  // The most samples of a piece; by itself a whole batch.
  virtual uint32_t piece_samples() const { return layout_.batch_size; }
  // Finds memory in which to fill a piece. False: there is none before another piece's delivery is done. What
  // was taken goes back by Deliver or Return. Any thread; blocks for nothing.
  virtual bool Take(Piece* /*piece*/) { return true; }
  virtual void Return(const Piece& /*piece*/) {}
  // Host memory that workers fill: of the piece's first sample in that tensor, the others follow without
  // gaps. Preconditions: piece.slot < slot_count(); it was taken; Prepare gave OK for what is touched.
  virtual std::byte* FillAddress(const Piece& piece, size_t tensor) = 0;
  // Sees to it that the memory of samples [begin, end) of the piece is there, counted from the batch's first;
  // may take a while the first time. Any thread, for disjoint samples side by side. kResourceExhausted when
  // the host has not what the pool promised.
  virtual Status Prepare(const Piece& /*piece*/, uint32_t /*begin*/, uint32_t /*end*/) { return OkStatus(); }

  // Makes a piece visible to clients and then calls `done` exactly once, on this or on another thread. Its
  // memory must not be written until then, and is anybody's after. On the host the slot is the client's
  // memory already: `done` is called at once.
  using Done = std::function<void(Status, CopyTime)>;
  virtual void Deliver(const Piece& piece, const SlotRange& landing, Done done) = 0;

  // While `waiting`, no slot is free and the reader wants to know of releases. On the host the clients ring
  // for them, so there is nothing to do. A GPU cannot ring: the arena then calls the reader again and again,
  // from another thread, until it waits no more. Any thread; called under the feed's lock, blocks for
  // nothing.
  virtual void SetWaiting(const std::shared_ptr<ReleaseReader>& /*reader*/, bool /*waiting*/) {}

  // Gives the pages back although somebody may still have the memory: a client that said it has not. Where
  // that cannot be done nothing happens. The arena is of no use after it.
  virtual void Discard() {}

  // These clients ended, or were given up, without having said that they unmapped the memory. At most once,
  // and not with Discard. On the host the kernel keeps memory that is mapped; a GPU's may have to be kept by
  // us. NOLINTNEXTLINE(performance-unnecessary-value-param): who overrides it keeps them
  virtual void LeaveTo(std::vector<ClientProcess> /*clients*/) {}

  // What a client on that GPU maps: this, or of a group's memory on several GPUs the part that lies there. An
  // error says why the client can have none. Any thread; may take a while.
  virtual Result<const Arena*> At(const std::string& /*gpu_uuid*/) { return this; }
  // One of the clients that At gave `part` for is gone. A part of a group's memory goes with the last one,
  // unless `keep`: it has had batches, and somebody may come back for more. `remaining_mapper`: that client,
  // if it has not said that it unmapped the part. May take a while.
  // NOLINTNEXTLINE(performance-unnecessary-value-param): who overrides it keeps it
  virtual void LeaveAt(const Arena& /*part*/, bool /*keep*/,
                       std::optional<ClientProcess> /*remaining_mapper*/) {}

  // The descriptor that a client maps; -1 when the offer carries a handle instead. Owned by the arena.
  virtual int fd() const = 0;
  virtual std::optional<std::array<std::byte, 64>> ipc_handle() const { return {}; }

  const ArenaId& id() const { return id_; }
  uint32_t slot_count() const { return slot_count_; }
  const BatchLayout& layout() const { return layout_; }
  uint64_t slot_stride() const { return layout_.slot_stride; }
  // Of all slots; what a client maps may be longer (see mapped_bytes).
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
