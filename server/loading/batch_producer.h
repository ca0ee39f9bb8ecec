// SPDX-License-Identifier: Apache-2.0
// The seam between a feed and what fills its batches. In: requests for pieces of batches. Out: filled memory.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/spec/feed_spec.h"
#include "common/wire/shared_page.h"
#include "server/dataset/dataset.h"
#include "server/loading/feed_share.h"
#include "server/loading/sample_places.h"
#include "server/memory/arena.h"
#include "server/order/sampler.h"
#include "server/trace/feed_recorder.h"
#include "server/transform/deferred_pixel_ops.h"

namespace pinfeed {

class BatchFill;
class BatcherQueue;
class ProducerGroup;
class ResidentData;
struct ResidentPlan;

// What the filling of all batches of a feed shares.
struct FillContext {
  Arena& arena;
  const Sampler& sampler;
  const OnBadSample on_bad_sample;
  const FeedRecorder recorder;
  const std::shared_ptr<FeedShare> share;
  std::atomic<bool> stopped{false};         // what is being filled is not wanted any more
  std::atomic<uint32_t> pieces_filling{0};  // requested and not filled
  // By slot: whether its batch is in another slot now, while this one is still being filled. Written under
  // the feed's lock.
  std::array<std::atomic<bool>, kMaxSlots> replaced{};
};

// Purpose: asks a producer to fill some samples of one batch. The memory stays reserved until Complete: a
// request that is cancelled still has to be completed, which confirms that nothing writes any more. Owns: a
// share of the feed, and so the memory. Threads: Wanted, Places and Bad from any thread; every write and
// every Bad happens before Complete. Errors: Places fails when the host lacks memory; the producer's own go
// to Bad and Complete. Invariant: only the first Complete has an effect.
class PieceRequest {
 public:
  struct Parts {
    std::shared_ptr<const void> feed;  // keeps alive what the following refer to
    std::shared_ptr<BatchFill> batch;
    size_t index;  // of the piece in the batch
    BatchPlan plan;
    Piece piece;
    std::vector<std::atomic<uint64_t>>& packed_rows;  // see SamplePlaces
    const FillContext& context;
    const std::atomic<uint32_t>& first_failed;  // later samples of the batch are not wanted
  };
  explicit PieceRequest(Parts parts) : parts_(std::move(parts)) {}

  const BatchPlan& plan() const { return parts_.plan; }
  // The samples to fill, by their index in the plan: [begin, end), not empty.
  uint32_t begin() const { return parts_.piece.begin; }
  uint32_t end() const { return parts_.piece.end; }
  uint32_t slot() const { return parts_.piece.slot; }
  const std::shared_ptr<FeedShare>& share() const { return parts_.context.share; }

  // False: the feed was stopped, or an earlier sample has failed the batch. The sample need not be filled.
  bool Wanted(uint32_t index) const {
    return !parts_.context.stopped.load(std::memory_order_relaxed) &&
           index <= parts_.first_failed.load(std::memory_order_relaxed);
  }
  // Makes the memory of [begin, end) available, which may block for a while the first time.
  // kResourceExhausted when the host lacks that memory: nothing of the range may be written. Precondition:
  // begin() <= begin < end <= end().
  Status Prepare(uint32_t begin, uint32_t end) const {
    return Prepare(parts_.context.arena, parts_.piece, begin, end);
  }
  // Prepare, and sets `places` to where sample `begin` goes; those behind it follow by SamplePlaces::Next.
  Status Places(uint32_t begin, uint32_t end, SamplePlaces& places) const;
  // Arena::Prepare, which waits for samples that have the memory meanwhile (LargeSamples).
  static Status Prepare(Arena& arena, const Piece& piece, uint32_t begin, uint32_t end);
  // The memory of a tensor of all samples. Precondition: Prepare succeeded for all of them.
  std::byte* Address(size_t tensor) const { return parts_.context.arena.FillAddress(parts_.piece, tensor); }
  // Sample `index` cannot be used. The producer has filled its place with zeros if the spec wants that.
  // Precondition: begin() <= index < end().
  void Bad(uint32_t index, Status why) const;
  // There is no sample `index`: the batch gets shorter by it, and that is no fault. Same precondition.
  void LeaveOut(uint32_t index) const;
  // The request may stay incomplete for long: the batch is requested anew, in another slot. The first of its
  // requests that is filled gives the batch. Each keeps its memory until its own Complete. Returns false,
  // without effect, if there is no other slot now, or the batch has been moved too often.
  bool Replace() const;
  // Whether the batch is in another slot now: nobody needs to begin with this request, and an error of it has
  // no effect.
  bool Replaced() const { return parts_.context.replaced[parts_.piece.slot].load(std::memory_order_relaxed); }
  // While the feed is traced: measures the load of `samples` samples until `spans` is destroyed.
  void Trace(uint32_t samples, std::optional<WorkSpans>& spans) const;
  // The samples are filled or reported as bad, or an error says why the batch cannot be filled. From now on
  // nothing writes to the places. Returns false, without effect, when the request was completed before.
  bool Complete(Status status);

 private:
  const Parts parts_;
  std::atomic<bool> completed_{false};
};

// What a producer has spent so far, and does now. The times never fall.
struct ProducerTimes {
  uint64_t read_ns = 0;  // of workers or processes
  uint64_t decode_ns = 0;
  uint64_t processes_ns = 0;       // of read_ns, that of processes
  uint64_t staged_bytes = 0;       // copied from where processes filled them
  bool processes_at_work = false;  // a process is filling a batch
  // In which samples were there to be loaded, for one that waits for them too; nothing: they always are.
  std::optional<uint64_t> loading_ns = {};
};

// The samples that the decoded cache had, and those that it had not. Neither falls.
struct CacheUse {
  uint64_t hits = 0;
  uint64_t misses = 0;
};

// What was read ahead of the workers. The counts never fall.
struct ReadAheadUse {
  bool on = false;      // now
  uint64_t starts = 0;  // how often it was switched on
  // What the page cache lacked, so that the disk read it.
  uint64_t samples = 0;
  uint64_t bytes = 0;
};

// Purpose: fills the batches of one feed, which owns it. Threads: any. Errors: by PieceRequest.
class BatchProducer {
 public:
  virtual ~BatchProducer() = default;

  // Produce will be called with this request. Called under the feed's lock, in the order of the batches,
  // which those of Produce need not have. Calls nothing of the feed.
  virtual void Announce(const PieceRequest& /*request*/) {}
  // Fills the piece and completes the request, on any thread, now or later, in any order. Called without a
  // lock; does not block.
  virtual void Produce(std::shared_ptr<PieceRequest> request) = 0;
  // The daemon's workers that may load for the feed at once; UINT32_MAX: not only workers do.
  virtual uint32_t max_workers(const FeedShare& /*share*/) const { return UINT32_MAX; }
  // Whether each thread that may fill batches of the feed has one to fill, if `batches` are not filled.
  virtual bool Busy(const FeedShare& share, size_t batches) const { return batches >= max_workers(share); }
  // A queue's batch was lent to a member, which can take it from now on. Called under the feed's lock. Calls
  // nothing of the feed.
  virtual void OnLent(uint64_t /*epoch*/, uint64_t /*batch_index*/) {}
  // The feed was stopped: complete every request as soon as nothing writes to its memory. Wanted is false for
  // all of them, so a producer that asks often has nothing to do here. Called without a lock.
  virtual void Cancel() {}
  // The feed plans no more batches: complete those that wait for more samples. Called without a lock.
  virtual void Drain() {}

  virtual ProducerTimes times() const = 0;
  virtual CacheUse cache_use() const { return {}; }
  virtual ReadAheadUse read_ahead_use() const { return {}; }
  // The data behind the samples, as clients and operators see it.
  virtual const DatasetInfo& dataset() const = 0;
  // Names one sample in messages, see Dataset::Describe.
  virtual std::string Describe(uint64_t sample) const = 0;
  // The pixel operations that are left to the client; none on the host.
  virtual const std::optional<DeferredPixelOps>& deferred_pixel_ops() const = 0;
  // The processes that fill its batches; null: the daemon does.
  virtual std::shared_ptr<ProducerGroup> processes() const { return nullptr; }
  // What client processes submit to it; null: it has no clients.
  virtual std::shared_ptr<BatcherQueue> requests() const { return nullptr; }
  // The samples on the client's GPU of which the batches are lists, and what is made of them; null: they are
  // not there.
  virtual std::shared_ptr<ResidentData> resident() const { return nullptr; }
  virtual const ResidentPlan* resident_plan() const { return nullptr; }
  // The memory that these processes fill, laid out as the feed's arena; null: the arena itself.
  virtual const Arena* staging() const { return nullptr; }
};

}  // namespace pinfeed
