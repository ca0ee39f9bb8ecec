// SPDX-License-Identifier: Apache-2.0
// Deals the batches of one feed to the processes that fill them. In: requests, and what the processes say.
// Out: completed requests.
#pragma once

#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/result.h"
#include "common/base/sync.h"
#include "common/base/unique_handle.h"
#include "common/spec/feed_spec.h"
#include "common/wire/shared_page.h"
#include "server/loading/batch_producer.h"
#include "server/memory/one_off_memory.h"
#include "server/memory/ongoing_operation.h"

namespace pinfeed {

// Purpose: deals each request to one producer at a time: the oldest request of a lane to its producer with
// the fewest. If a producer's process ends, its requests are dealt again: nothing writes to their memory any
// more. If it takes too long, it keeps them, and the feed requests their batches anew, in other slots; the
// first one to finish gives the batch. Owns: the requests until they are completed. Shared by the feed's
// producer and the producers' connections, which may outlive it. Threads: any. Nothing blocks. Errors: a
// batch at which kMaxDeaths processes ended fails; so does one whose producer says so, unless it says that
// the data end before it. Invariants: 1. a request is completed once; 2. before Cancel, only when no process
// writes to its memory any more.
class ProducerGroup {
 public:
  // A batch is given up once so many processes have ended while they filled it, each attached after the one
  // before had ended: something may kill all processes at once.
  static constexpr uint32_t kMaxDeaths = 3;
  static constexpr size_t kMaxProducers = 256;
  using ProducerId = uint64_t;

  // The way to one process. Called with the group's lock held: must neither block nor call the group.
  class Link {
   public:
    virtual ~Link() = default;
    // Returns whether the process gets the task. Otherwise the link has hung up, and nobody writes for the
    // task.
    virtual bool Send(const ProducerTask& task) = 0;
    virtual void HangUp() = 0;
    // The producer gets no more tasks, and may finish those that it has.
    virtual void EndTasks() = 0;
  };
  // Completes a request whose memory its producer has filled, even if its batch was moved. Called without a
  // lock, on any thread.
  using OnFilled = std::function<void(std::shared_ptr<PieceRequest>)>;

  // `on_filled` may refer to what the request's feed owns. `one_off` may be null.
  ProducerGroup(uint64_t feed, const ProducedDataset& dataset, OnFilled on_filled,
                std::unique_ptr<OneOffMemory> one_off)
      : feed_(feed),
        lanes_(std::max(dataset.lanes, 1u)),
        task_timeout_(dataset.task_timeout_ms),
        on_filled_(std::move(on_filled)),
        one_off_(std::move(one_off)) {}
  ~ProducerGroup();

  // The request's memory is about to be prepared. Until Produce or Withdraw, no later batch is dealt: a
  // producer may hold one that it needs earlier ones for.
  void Announce(const PieceRequest& request) PF_EXCLUDES(mutex_);
  // Its memory could not be prepared.
  void Withdraw(const PieceRequest& request) PF_EXCLUDES(mutex_);
  // The request's memory is prepared. Precondition: it is all of its batch, and was announced.
  void Produce(std::shared_ptr<PieceRequest> request) PF_EXCLUDES(mutex_);
  // Completes every request at once and hangs up on every producer. They may still write to the memory, so
  // nobody else may get it.
  void Cancel() PF_EXCLUDES(mutex_);

  // kInvalidArgument for a lane that no batch has; kResourceExhausted for too many producers; kUnavailable
  // once cancelled.
  Status CheckRoom(uint32_t lane) const PF_EXCLUDES(mutex_);
  // Deals to the producer from now on. The same errors.
  Result<ProducerId> Attach(std::shared_ptr<Link> link, pid_t pid, uint32_t lane = 0) PF_EXCLUDES(mutex_);
  // The producer has filled the task's batch, or says why it cannot. With kOutOfRange the data end before
  // that batch: it is dealt to nobody, and its slot stays as it is until the feed ends, or is free again if
  // the batch was requested anew. kInvalidArgument if it has no such task.
  Status OnDone(ProducerId producer, uint64_t task, const Status& status) PF_EXCLUDES(mutex_);
  // The producer asks for memory of its own for a task's batch, which does not fit into its slot. At most
  // once a task. `until_free` and errors: as OneOffMemory::Grant; besides, kInvalidArgument for a wrong
  // request, and kFailedPrecondition if the feed has no such memory.
  Result<UniqueFd> GrantMemory(ProducerId producer, uint64_t task, uint64_t bytes,
                               std::shared_ptr<const void> until_free) PF_EXCLUDES(mutex_);
  // The producer gets no more tasks. Returns whether OnEnded must be called once its process has ended;
  // otherwise the producer is forgotten.
  bool OnHungUp(ProducerId producer) PF_EXCLUDES(mutex_);
  // The producer's process has ended.
  void OnEnded(ProducerId producer) PF_EXCLUDES(mutex_);
  // The session whose token the producer used has departed. The producer gets no more tasks.
  void Dismiss(ProducerId producer) PF_EXCLUDES(mutex_);
  // How long a task may take; 0: no limit.
  std::chrono::milliseconds task_timeout() const { return task_timeout_; }
  // Replaces the producer's requests (PieceRequest::Replace) if its task takes longer than task_timeout, or
  // it hung up. The producer gets no more tasks until it has done these. Call it periodically, if there is a
  // limit. OnDone, OnEnded and this are called one at a time.
  void ReplaceLate(ProducerId producer) PF_EXCLUDES(mutex_);

  struct Counts {
    uint32_t producers = 0;    // attached
    uint32_t busy = 0;         // of these, with a task
    uint32_t waiting = 0;      // batches that nobody fills yet
    uint32_t dealt = 0;        // tasks that producers hold now
    uint64_t dealt_again = 0;  // batches, because a process ended or took too long
    uint64_t worked_ns = 0;    // from each task's start to its end
    OneOffMemory::Counts one_off;
  };
  Counts counts() const PF_EXCLUDES(mutex_);
  struct State {
    // The producer that has been at its task for longest; 0: none has a task.
    pid_t slowest_pid = 0;
    std::string slowest_task = {};
    uint64_t slowest_ns = 0;    // so far
    std::string data_end = {};  // the first batch that does not exist, as far as producers said
  };
  State state() const PF_EXCLUDES(mutex_);
  // The current task of each process that has one.
  std::vector<OngoingOperation> Operations() const PF_EXCLUDES(mutex_);

 private:
  using BatchNumber = std::pair<uint64_t, uint64_t>;  // epoch and index: a batch is older than those above it
  static BatchNumber NumberOf(const PieceRequest& request) {
    return {request.plan().epoch, request.plan().batch_index};
  }
  struct Task {
    std::shared_ptr<PieceRequest> request;
    uint32_t deaths = 0;
    ProducerId blamed_from = 0;  // the first producer whose end counts as another death
    uint64_t id = 0;             // of its latest deal
    uint64_t dealt_ns = 0;       // when
    bool asked_memory = false;   // since then
  };
  struct Producer {
    std::shared_ptr<Link> link;
    pid_t pid = 0;
    uint32_t lane = 0;
    bool hung_up = false;
    bool dismissed = false;
    bool late = false;  // it takes too long, and gets no more until it has done what it has
    uint64_t last_done_ns = 0;
    std::deque<Task> tasks;  // in the order in which it fills them

    // Since when it has been at its first task. Precondition: it has one.
    uint64_t BeganNs() const { return std::max(tasks.front().dealt_ns, last_done_ns); }
  };

  void WaitLocked(Task task) PF_REQUIRES(mutex_);
  // Deals what waits, as far as there are producers for it. Drops requests whose batch is filled elsewhere.
  void Deal() PF_EXCLUDES(mutex_);
  void DealLocked() PF_REQUIRES(mutex_);
  // The producer that gets the next task of a lane; null: each has enough.
  Producer* NextLocked(uint64_t lane) PF_REQUIRES(mutex_);
  Status CheckRoomLocked(uint32_t lane) const PF_REQUIRES(mutex_);

  const uint64_t feed_;
  const uint64_t lanes_;
  const std::chrono::milliseconds task_timeout_;
  // A producer with short tasks has the next one waiting, so that it does not idle while the daemon deals.
  // With longer tasks that costs little, and a task that waits behind a slow one would delay its batch.
  static constexpr uint64_t kShortTaskNs = 5'000'000;

  const OnFilled on_filled_;
  const std::unique_ptr<OneOffMemory> one_off_;  // null: the feed has none
  mutable Mutex mutex_;
  std::set<BatchNumber> announced_ PF_GUARDED_BY(mutex_);
  std::deque<Task> waiting_ PF_GUARDED_BY(mutex_);      // the oldest first
  std::vector<Task> beyond_end_ PF_GUARDED_BY(mutex_);  // of the data
  std::map<ProducerId, Producer> producers_ PF_GUARDED_BY(mutex_);
  ProducerId next_producer_ PF_GUARDED_BY(mutex_) = 1;
  uint64_t next_task_ PF_GUARDED_BY(mutex_) = 1;
  // What a task takes: a moving average. Not short at first, since a producer may only copy the first batch.
  uint64_t task_ns_ PF_GUARDED_BY(mutex_) = 2 * kShortTaskNs;
  bool cancelled_ PF_GUARDED_BY(mutex_) = false;
  Counts counts_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
