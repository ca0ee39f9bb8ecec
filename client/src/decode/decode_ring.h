// SPDX-License-Identifier: Apache-2.0
// The ring of decoded batches, and who works on which part of them. In: published batches. Out: units of work
// for decode threads; batches that are decoded, in order; the same for other members of the group (readers).
#pragma once

#include <array>
#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "client/src/base/unix_socket.h"
#include "client/src/decode/decode_engine.h"
#include "client/src/decode/decoded_layout.h"
#include "client/src/gpu/output_memory.h"
#include "client/src/memory/publish_reader.h"
#include "common/base/result.h"
#include "common/base/sync.h"

namespace pinfeed {

// Purpose: see DecodedBatches, whose state this is. Owns the device memory. Borrows the publish page.
// Threads: any. Invariants: 1. batch n is in entry n % kEntries, from its beginning until it is written or
// discarded and the GPU is done with it, and every reader has fetched it; 2. batches are begun in order; 3.
// one thread at a time looks for the next one.
class DecodeRing {
 public:
  static constexpr uint32_t kEntries = 4;

  // A part of a batch that one thread works on.
  struct Unit {
    BatchDescriptor batch{};
    DecodedMemory* memory = nullptr;  // of the decoded batch
    // Samples whose images it decodes; none: it copies the other tensors. Of a whole batch: all.
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  using Failures = std::map<uint32_t, Status>;  // by sample

  // What became of a batch's images.
  struct Outcome {
    Status first_failure = {};          // of the first image that cannot be decoded; OK: all are
    std::vector<uint32_t> zeroed = {};  // the samples that are zeros for it
  };

  // The place of a batch in the feed, which its members share. Each has sequence numbers of its own.
  struct Place {
    uint64_t epoch = 0;
    uint64_t batch_index = 0;
    auto operator<=>(const Place&) const = default;
  };
  struct Hooks {
    std::function<void()> before_look;  // for the next batch, soon again if there is none; without the lock
    std::function<void()> changed;      // a batch was decoded, or the ring broke
  };

  // `unit_samples`: the most images of a unit.
  DecodeRing(DecodedLayout layout, const PublishReader& reader, uint32_t unit_samples)
      : layout_(std::move(layout)), reader_(reader), unit_samples_(unit_samples) {}
  // `shared`: as in DecodeEngine::MakeMemory. After an error it may be called again.
  Status Allocate(DecodeEngine& engine, bool shared) PF_EXCLUDES(mutex_);
  // Precondition: no thread has begun.
  void SetHooks(Hooks hooks) { hooks_ = std::move(hooks); }

  const DecodedLayout& layout() const { return layout_; }

  // ---- Of the decode threads ----

  // Waits for a unit; `whole`: for one that is a whole batch, of which nothing may be claimed yet. Returns
  // false if there will be none.
  bool Claim(Unit* unit, bool whole = false) PF_EXCLUDES(mutex_);
  // Leaves a whole batch to those that claim units, in other memory. Returns its old memory.
  std::unique_ptr<DecodedMemory> GiveBack(const Unit& unit, std::unique_ptr<DecodedMemory> memory)
      PF_EXCLUDES(mutex_);
  // Ends a unit with the images that failed. Returns true for the last one of a batch; the caller then zeroes
  // what `zeroed` names and calls Complete.
  bool Finish(const Unit& unit, Failures failures, std::vector<uint32_t>* zeroed) PF_EXCLUDES(mutex_);
  void Complete(const Unit& unit) PF_EXCLUDES(mutex_);
  // Fails every batch that is not decoded.
  void Break(Status error) PF_EXCLUDES(mutex_);
  void BeginThread() PF_EXCLUDES(mutex_);
  void EndThread() PF_EXCLUDES(mutex_);

  // ---- Of the readers: see DecodedReaders. Their ids are the caller's.

  // The reader fetches every batch from `first` on that is not begun, and those that are still here.
  void AddReader(uint64_t reader, const Place& first) PF_EXCLUDES(mutex_);
  void RemoveReader(uint64_t reader) PF_EXCLUDES(mutex_);
  struct ReadyBatch {
    uint64_t sequence = 0;
    const std::byte* memory = nullptr;
    uint32_t samples = 0;
    Failures failures;
  };
  // Returns the batch, which stays until Fetched; nothing: it is not decoded yet. kNotFound: it never will be
  // here. The reader will fetch nothing from before it.
  Result<std::optional<ReadyBatch>> FetchFor(uint64_t reader, const Place& place) PF_EXCLUDES(mutex_);
  void Fetched(uint64_t reader, uint64_t sequence) PF_EXCLUDES(mutex_);
  // Whether the threads are to end.
  bool IsAtEnd() const PF_EXCLUDES(mutex_);
  FeedState session_state() const { return reader_.state(); }

  // ---- Of the feed's thread and the trainer's: see DecodedBatches ----

  // Of the batch that is to be taken next.
  bool IsDecoded(uint64_t sequence) PF_EXCLUDES(mutex_);
  bool AwaitDecoded(uint64_t sequence, SteadyTime deadline) PF_EXCLUDES(mutex_);
  Result<Outcome> OutcomeOf(uint64_t sequence) const PF_EXCLUDES(mutex_);
  Status Write(const BatchDescriptor& batch, const OutputMemory& outputs, void* stream, SteadyTime deadline)
      PF_EXCLUDES(mutex_);
  void Discard(uint64_t sequence) PF_EXCLUDES(mutex_);
  // Tells the threads to end. / Waits for that. Returns false if one still works at `deadline`.
  void RequestStop() PF_EXCLUDES(mutex_);
  bool AwaitThreads(SteadyTime deadline) PF_EXCLUDES(mutex_);
  // Waits until the GPU has executed all writes; abandons the memory that it still reads at `deadline`.
  // Returns the bytes of that. Precondition: the threads have ended.
  uint64_t AwaitWrites(SteadyTime deadline) PF_EXCLUDES(mutex_);

 private:
  // Of an entry. Its batch may lie in the memory (`filled`) in every state but kDecoding: readers fetch it
  // also after this process has written it (kFree), or does not want it.
  enum class State { kFree, kDecoding, kDecoded, kWriting, kWritten };
  struct Entry {
    State state = State::kFree;
    BatchDescriptor batch{};
    uint32_t next_sample = 0;     // of the next unit
    bool copies_claimed = false;  // the unit of the other tensors
    uint32_t under_way = 0;       // units claimed and not ended
    bool unwanted = false;        // discarded
    bool filled = false;          // the batch is decoded, and lies in the memory until the next one is begun
    std::set<uint64_t> readers;   // that have yet to fetch it
    Failures failures;
    std::unique_ptr<DecodedMemory> memory;
  };

  Entry& At(uint64_t sequence) PF_REQUIRES(mutex_) { return entries_[sequence % kEntries]; }
  const Entry& At(uint64_t sequence) const PF_REQUIRES(mutex_) { return entries_[sequence % kEntries]; }
  // The entry of a batch that is decoded; null: it is not.
  const Entry* Decoded(uint64_t sequence) const PF_REQUIRES(mutex_);
  bool IsOver() const PF_REQUIRES(mutex_) { return stopping_ || !broken_.ok(); }
  bool TryClaim(Unit* unit, bool whole) PF_REQUIRES(mutex_);
  // Whether batch `sequence` has units to claim.
  bool IsOpen(uint64_t sequence) const PF_REQUIRES(mutex_);
  // Whether anybody uses the batch once it is decoded.
  static bool IsNeeded(const Entry& entry) { return !entry.unwanted || !entry.readers.empty(); }
  static Place PlaceOf(const Entry& entry) { return {entry.batch.epoch, entry.batch.batch_index}; }
  // Whether it is decoded, or will be.
  static bool CanBeFetched(const Entry& entry) {
    return entry.filled || (entry.state == State::kDecoding && IsNeeded(entry));
  }
  void DropReader(Entry& entry, uint64_t reader) PF_REQUIRES(mutex_);
  // Whether a thread works and the batch that the trainer takes next is decoded. Threads that work at once
  // take more of a busy trainer for each image.
  bool OneSuffices() const PF_REQUIRES(mutex_);
  static bool AllClaimed(const Entry& entry) {
    return entry.copies_claimed && entry.next_sample >= entry.batch.samples;
  }
  // The trainer is about to take this batch.
  void Expect(uint64_t sequence) PF_REQUIRES(mutex_);
  // Begins the next batch, or returns once it may have become possible, or soon.
  void Look() PF_EXCLUDES(mutex_);
  // Of an entry with failures: the first in the batch's order.
  static Status FailureOf(const Entry& entry);

  const DecodedLayout layout_;
  const PublishReader reader_;
  const uint32_t unit_samples_;
  Hooks hooks_;
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::array<Entry, kEntries> entries_ PF_GUARDED_BY(mutex_);
  uint64_t oldest_ PF_GUARDED_BY(mutex_) = 0;   // batch that may have units to claim
  uint64_t next_ PF_GUARDED_BY(mutex_) = 0;     // batch to begin
  uint64_t awaited_ PF_GUARDED_BY(mutex_) = 0;  // batch to be taken next, as far as is known
  std::optional<Place> last_begun_ PF_GUARDED_BY(mutex_);
  std::map<uint64_t, Place> readers_ PF_GUARDED_BY(mutex_);  // with the first batch of each
  bool looking_ PF_GUARDED_BY(mutex_) = false;
  bool stopping_ PF_GUARDED_BY(mutex_) = false;
  uint32_t threads_ PF_GUARDED_BY(mutex_) = 0;
  Status broken_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
