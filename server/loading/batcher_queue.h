// SPDX-License-Identifier: Apache-2.0
// Collects the requests of client processes into the batches of one feed. In: requests, batches that have a
// slot, answers. Out: requests to load, in the order of arrival, and one answer for each.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "common/base/histogram.h"
#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/spec/feed_spec.h"
#include "server/loading/batch_producer.h"
#include "server/loading/gathering_piece.h"
#include "server/loading/request_end.h"

namespace pinfeed {

// Purpose: gives each request a place in the next batch, and hands the answers to the requests back. The
// first batch that has a slot gathers: its requests are loaded as they come. It closes when it is full, or
// when the first that waits in it has waited for max_delay. The requests of one that its consumer does not
// take in time go to another consumer. Owns: the requests until they are answered, the pieces of batches that
// are not closed. Shared by the feed's producer and the connections of clients and consumers, which may
// outlive it. Threads: any. Nothing blocks. Errors: a request that ends badly is answered with the reason;
// the batch goes on. Invariants: 1. each submitted request is answered once, unless its client is gone; 2.
// batches get the requests in the order of arrival, but for those that are dealt again, which come before all
// that have no place yet; 3. Client and load are called, and pieces closed, without the lock.
class BatcherQueue {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;
  using Now = std::function<Time()>;
  using ConsumerId = uint64_t;                     // never 0
  using BatchKey = std::pair<uint64_t, uint64_t>;  // epoch, index

  static constexpr size_t kMaxClients = 1024;
  // Batches that wait for answers at a time. The oldest one is given up for another.
  static constexpr size_t kMaxBatches = 1024;
  // A request that is dealt again so often fails when another consumer ends with it: it may be the cause.
  static constexpr uint32_t kMaxDealtAgain = 2;
  // A consumer takes a batch that it waited for within this time, unless it is stopped or hangs. A request is
  // taken back kMaxTakenBack times at most: on a host that is too busy, more would only add to its work.
  static constexpr std::chrono::milliseconds kTakeWithin{100};
  static constexpr uint32_t kMaxTakenBack = 2;

  // The way to one client process, whose memory holds its requests. Threads: any. Only Read may block.
  class Client {
   public:
    virtual ~Client() = default;
    // The bytes of a request, which the client may change at any time. Waits for the memory of its slot.
    virtual Result<std::span<const std::byte>> Read(uint32_t slot, uint64_t bytes) = 0;
    virtual void Answer(uint32_t slot, const Status& status, std::span<const std::byte> answer) = 0;
    virtual void HangUp() = 0;
  };
  struct Request {
    std::shared_ptr<Client> client;
    uint32_t slot = 0;  // of the client's memory
    uint64_t bytes = 0;
    std::optional<Time> deadline = {};
    uint64_t id = 0;  // the number of its arrival, from 0. Set by Submit, like the following
    Time arrived = {};
  };
  using RequestPtr = std::shared_ptr<const Request>;
  // Requests to be loaded into a piece, in which BeginLoad was called for them.
  struct Load {
    std::shared_ptr<GatheringPiece> piece;
    uint32_t first = 0;                // index in the batch
    std::vector<RequestPtr> requests;  // never none; null: it has ended
  };
  using Loader = std::function<void(Load)>;
  struct Output {         // what the consumer says to one request
    bool failed = false;  // it is a text
    uint64_t length = 0;
    std::span<const std::byte> bytes = {};  // as many as there is room for
  };

  // `request_bytes`: the exact size of each request, for arrays. `load` may refer to what the feed owns.
  BatcherQueue(const BatcherSpec& spec, std::optional<uint64_t> request_bytes, Loader load,
               Now now = Clock::now)
      : spec_(spec), request_bytes_(request_bytes), load_(std::move(load)), now_(std::move(now)) {}
  ~BatcherQueue();

  const BatcherSpec& spec() const { return spec_; }
  uint64_t max_request_bytes() const { return request_bytes_.value_or(spec_.max_request_bytes); }

  // ---- The feed's side: see BatchProducer ----
  void Announce(const PieceRequest& piece) PF_EXCLUDES(mutex_);
  void Produce(std::shared_ptr<PieceRequest> piece) PF_EXCLUDES(mutex_);
  // The batch was given to a consumer, which has to Take it.
  void OnLent(BatchKey batch) PF_EXCLUDES(mutex_);
  // Closes all batches with what there is. Later requests are refused.
  void Drain() PF_EXCLUDES(mutex_);
  // Answers every request with an error and hangs up on the clients.
  void Cancel() PF_EXCLUDES(mutex_);
  // Whether a request still waits for its answer; if not, it need not be loaded.
  bool Wanted(const Request& request) const PF_EXCLUDES(mutex_);
  // Sample `index` was left out of the batch. Answers its request with `why`, if it still waits.
  void LeaveOut(const BatchPlan& plan, uint32_t index, const Status& why) PF_EXCLUDES(mutex_);

  // ---- Clients ----
  // kResourceExhausted for too many clients; kUnavailable once drained or cancelled. The same without effect.
  Status CheckRoom() const PF_EXCLUDES(mutex_);
  Status AddClient(const std::shared_ptr<Client>& client) PF_EXCLUDES(mutex_);
  void RemoveClient(const std::shared_ptr<Client>& client) PF_EXCLUDES(mutex_);
  // Answers a request that cannot be accepted. kFailedPrecondition, without an answer, if the slot has a
  // request already.
  Status Submit(Request request) PF_EXCLUDES(mutex_);
  // Does nothing if the slot has no request.
  void CancelRequest(const std::shared_ptr<Client>& client, uint32_t slot) PF_EXCLUDES(mutex_);

  // ---- Consumers ----
  void AddConsumer(ConsumerId consumer, int32_t pid) PF_EXCLUDES(mutex_);
  // Returns how many requests of the batch wait for an answer. With 0 the batch is not to be computed: its
  // requests have ended or were dealt again. An unanswered batch belongs to the last consumer that took it.
  uint32_t Take(BatchKey batch, ConsumerId consumer) PF_EXCLUDES(mutex_);
  // Answers requests of a batch that the consumer took, in the order of its samples: from *next on, some MiB.
  // Moves *next. Returns how many still waited. kInvalidArgument, without effect: not one output a sample.
  Result<uint32_t> Answer(BatchKey batch, ConsumerId consumer, std::span<const Output> outputs, size_t* next)
      PF_EXCLUDES(mutex_);
  // The consumer's process has ended. The requests that it took are answered with an error or dealt again.
  void RemoveConsumer(ConsumerId consumer) PF_EXCLUDES(mutex_);

  // Does what is due by now. Returns when to call it again, if no request comes before. Call it after Submit,
  // AddConsumer and RemoveConsumer.
  std::optional<Time> Poll() PF_EXCLUDES(mutex_);

  // A consumer, and what it has taken and not answered.
  struct ConsumerCounts {
    int32_t pid = 0;
    uint32_t batches = 0;
    uint32_t requests = 0;   // of these, that wait for an answer
    uint64_t oldest_ns = 0;  // since it took the first of these batches; 0: it has none
  };
  // The counters only grow.
  struct Counts {
    uint64_t requests = 0;
    uint64_t again = 0;    // requests dealt again, or taken back
    uint32_t waiting = 0;  // in no closed batch
    std::array<uint64_t, kRequestEndNames.size()> ends{};
    DurationCounts latency;  // of answered requests, from arrival to answer
    std::vector<ConsumerCounts> consumers;
  };
  Counts counts() const PF_EXCLUDES(mutex_);

 private:
  using Slot = std::pair<const Client*, uint32_t>;
  static constexpr uint64_t kLeftOut = UINT64_MAX;  // no request has this id
  struct Batch {
    uint32_t samples = 0;
    uint32_t announced = 0;  // samples of the pieces so far
    bool closed = false;
    std::vector<uint64_t> requests;                       // ids by index, or kLeftOut
    std::vector<std::shared_ptr<GatheringPiece>> pieces;  // until it is closed
    uint32_t open = 0;                                    // requests that wait for an answer
    ConsumerId consumer = 0;                              // 0: nobody took it
    Time since = {};                                      // it was taken, or before that, lent
  };
  struct Pending {
    RequestPtr request;
    std::optional<BatchKey> batch = {};  // in which it has a place
    uint32_t again = 0;                  // how often it was dealt again
    uint32_t taken_back = 0;             // how often from a consumer that did not take it
  };
  // What a step leaves to be done without the lock.
  struct After {
    struct Told {
      RequestPtr request;
      Status status;
      std::span<const std::byte> answer;  // the consumer's memory
    };
    std::vector<Told> answers;
    std::vector<Load> loads;
    std::vector<std::pair<std::shared_ptr<GatheringPiece>, std::vector<uint32_t>>> closed;  // left out
    std::vector<std::shared_ptr<Client>> hang_ups;
  };

  static BatchKey KeyOf(const BatchPlan& plan) { return {plan.epoch, plan.batch_index}; }
  Status CheckRoomLocked() const PF_REQUIRES(mutex_);
  // Requests in no closed batch.
  size_t Waiting() const PF_REQUIRES(mutex_);
  // When the first of these has waited for max_delay; nothing: there is none.
  std::optional<Time> Due() const PF_REQUIRES(mutex_);
  // Gives requests their places, and closes the batches that are due.
  void CloseDue(Time now, After& after) PF_REQUIRES(mutex_);
  // Gives the batch what waits, as far as it has places. Returns whether any of it is dealt again.
  bool Gather(BatchKey key, Batch& batch, After& after) PF_REQUIRES(mutex_);
  // Loads those of the piece's requests that have an index of `first` or more.
  void LoadFrom(uint32_t first, const Batch& batch, const std::shared_ptr<GatheringPiece>& piece,
                After& after) const PF_REQUIRES(mutex_);
  void Close(BatchKey key, Batch& batch, After& after) PF_REQUIRES(mutex_);
  // Leaves out what has ended, and the places behind the requests. Precondition: the batch gets no more.
  void ClosePiece(Batch& batch, const std::shared_ptr<GatheringPiece>& piece, After& after) const
      PF_REQUIRES(mutex_);
  void Expire(Time now, After& after) PF_REQUIRES(mutex_);
  // Takes a request out of the queue, whose end it is. Null if it has ended before.
  RequestPtr End(uint64_t id, RequestEnd how) PF_REQUIRES(mutex_);
  void Fail(uint64_t id, RequestEnd how, const Status& why, After& after) PF_REQUIRES(mutex_);
  // The request waits for no answer to its batch any more.
  void LeaveBatch(const Pending& pending) PF_REQUIRES(mutex_);
  // Forgets the batch once no request waits for its answers and no piece of it is to come.
  void ForgetIfOver(std::map<BatchKey, Batch>::iterator at) PF_REQUIRES(mutex_);
  // The batch gets no answers. Its requests are answered with `why` or dealt again.
  void GiveUp(BatchKey key, const Status& why, After& after) PF_REQUIRES(mutex_);
  // Takes back the batches that were lent and not taken in time, while there are several consumers.
  void TakeBackLate(Time now) PF_REQUIRES(mutex_);
  // The request leaves its batch and waits for another, before those that came later.
  void WaitAgain(uint64_t id, Pending& pending) PF_REQUIRES(mutex_);
  std::vector<ConsumerCounts> CountConsumers() const PF_REQUIRES(mutex_);
  void Do(After after) PF_EXCLUDES(mutex_);

  const BatcherSpec spec_;
  const std::optional<uint64_t> request_bytes_;
  const Loader load_;
  const Now now_;
  mutable Mutex mutex_;
  std::map<uint64_t, Pending> pending_ PF_GUARDED_BY(mutex_);            // by id
  std::map<Slot, uint64_t> slots_ PF_GUARDED_BY(mutex_);                 // ids of pending requests
  std::set<uint64_t> waiting_ PF_GUARDED_BY(mutex_);                     // pending, without a place
  std::set<std::pair<Time, uint64_t>> deadlines_ PF_GUARDED_BY(mutex_);  // of pending requests
  std::map<BatchKey, Batch> batches_ PF_GUARDED_BY(mutex_);              // see ForgetIfOver
  std::deque<BatchKey> unclosed_ PF_GUARDED_BY(mutex_);             // in the feed's order; the first gathers
  std::set<std::pair<Time, BatchKey>> lent_ PF_GUARDED_BY(mutex_);  // and not taken, by Batch::since
  std::map<ConsumerId, int32_t> consumers_ PF_GUARDED_BY(mutex_);   // their processes
  std::set<std::shared_ptr<Client>> clients_ PF_GUARDED_BY(mutex_);
  uint64_t next_id_ PF_GUARDED_BY(mutex_) = 0;
  bool draining_ PF_GUARDED_BY(mutex_) = false;
  bool cancelled_ PF_GUARDED_BY(mutex_) = false;
  Counts counts_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
