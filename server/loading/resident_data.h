// SPDX-License-Identifier: Apache-2.0
// All samples of a dataset in the memory of a GPU. In: what a producer loads. Out: an arena that clients map
// for reading.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/sync.h"
#include "server/loading/batch_fill.h"
#include "server/loading/batch_producer.h"
#include "server/loading/feed_share.h"
#include "server/loading/resident_plan.h"
#include "server/memory/arena.h"
#include "server/memory/client_process.h"
#include "server/order/sampler.h"

namespace pinfeed {

// Purpose: loads the whole dataset as a single batch, piece by piece through the arena's pinned memory. Feeds
// that need the same samples share it. Owns: the arena, the producer that loads. Threads: any; nothing
// blocks, except the destruction. Errors: bad samples are kept, the first with their reasons, and each feed
// does with them what its spec says; if the samples cannot be loaded at all, every request gets that error.
// Invariants: 1. nothing writes to the arena once it is loaded; 2. no request is passed on before.
class ResidentData final : public BatchFill::Owner {
 public:
  struct Parts {
    std::shared_ptr<const Dataset> dataset;  // as it was opened; sharing depends on it
    ResidentPlan plan;
    std::string gpu_uuid;
    std::unique_ptr<Arena> arena;
    std::unique_ptr<BatchProducer> loader;
    Sampler sampler;  // of plan.load
    uid_t owner = 0;  // charged for the memory
  };
  // What makes batches of the samples.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // The samples are loaded. Called without a lock, on any thread.
    virtual void OnLoaded(std::shared_ptr<PieceRequest> request) = 0;
  };
  explicit ResidentData(Parts parts);
  // Precondition: AtRest.
  ~ResidentData() override;

  // Begins to load. Once.
  void Begin() PF_EXCLUDES(mutex_);
  // Passes the request on to its waiter once the samples are loaded, or completes it with the error that
  // they cannot be loaded.
  void Await(Waiter& waiter, std::shared_ptr<PieceRequest> request) PF_EXCLUDES(mutex_);
  // Completes the waiter's requests that wait here; nothing reads or writes their memory.
  void Cancel(const Waiter& waiter) PF_EXCLUDES(mutex_);
  // The samples are not wanted any more.
  void Stop() { filling_.stopped.store(true, std::memory_order_relaxed); }
  // Whether nothing is being loaded: the arena can be freed.
  bool AtRest() const PF_EXCLUDES(mutex_);

  bool loaded() const { return loaded_.load(std::memory_order_acquire); }
  // Whether the samples cannot be loaded, so that the next feed has to try anew.
  bool failed() const PF_EXCLUDES(mutex_);
  // Precondition of both: loaded().
  uint32_t bad_samples() const { return bad_samples_; }
  // Why the sample is bad; OK: it is not.
  Status WhyBad(uint32_t sample) const;
  const Parts& parts() const { return parts_; }
  const Arena& arena() const { return *parts_.arena; }
  ProducerTimes times() const { return parts_.loader->times(); }
  const std::shared_ptr<FeedShare>& share() const { return share_.share(); }
  // A client ended without confirming that it unmapped the arena.
  void AddRemainingMapper(ClientProcess process) PF_EXCLUDES(mutex_);

 private:
  enum class Phase : uint8_t { kNew, kLoading, kLoaded, kFailed, kUndelivered };
  using Waiting = std::vector<std::pair<Waiter*, std::shared_ptr<PieceRequest>>>;

  void OnPieceMemory() override PF_EXCLUDES(mutex_);
  void OnFilled(uint32_t slot, FillResult result) override PF_EXCLUDES(mutex_);
  void OnDelivered(uint32_t slot, const Status& status) override PF_EXCLUDES(mutex_);
  bool OnReplace(uint32_t /*slot*/) override { return false; }

  const FeedShareUse share_;  // first, so that it is destroyed last
  const Parts parts_;
  FillContext filling_;
  uint32_t bad_samples_ = 0;        // like the next two, constant once loaded
  std::map<uint64_t, Status> bad_;  // by sample, the first ones
  std::vector<bool> more_bad_;      // by sample, the others; empty: none
  std::atomic<bool> loaded_{false};
  mutable Mutex mutex_;
  Phase phase_ PF_GUARDED_BY(mutex_) = Phase::kNew;
  Status error_ PF_GUARDED_BY(mutex_);
  std::shared_ptr<BatchFill> fill_ PF_GUARDED_BY(mutex_);  // while loading
  Waiting waiting_ PF_GUARDED_BY(mutex_);
  std::vector<ClientProcess> remaining_mappers_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
