// SPDX-License-Identifier: Apache-2.0
// A feed whose batches processes fill, which tests play.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "server/loading/process_batch_producer.h"
#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {

inline constexpr uint32_t kBatchSize = 4;

// The far end of a producer, which a test plays.
class PlayedProcess final : public ProducerGroup::Link {
 public:
  bool Send(const ProducerTask& task) override {
    const MutexLock lock(mutex_);
    if (!unreachable) tasks_.push_back(task);
    return !unreachable;
  }
  void HangUp() override { hung_up = true; }
  void EndTasks() override { tasks_ended = true; }
  size_t count() const {
    const MutexLock lock(mutex_);
    return tasks_.size();
  }
  // The oldest task that was not taken yet.
  std::optional<ProducerTask> Take() {
    const MutexLock lock(mutex_);
    if (tasks_.empty()) return std::nullopt;
    const ProducerTask task = tasks_.front();
    tasks_.erase(tasks_.begin());
    return task;
  }

  std::atomic<bool> hung_up{false};
  std::atomic<bool> unreachable{false};  // no task can be sent
  std::atomic<bool> tasks_ended{false};

 private:
  mutable Mutex mutex_;
  std::vector<ProducerTask> tasks_ PF_GUARDED_BY(mutex_);
};

// An arena whose slot 0 takes long to prepare.
class ArenaWithASlowSlot final : public ArenaOverHost {
 public:
  ArenaWithASlowSlot(std::unique_ptr<HostArena> memory, std::shared_future<void> prepared)
      : ArenaOverHost(std::move(memory)), prepared_(std::move(prepared)) {}
  Status Prepare(const Piece& piece, uint32_t begin, uint32_t end) override {
    if (piece.slot == 0) prepared_.wait();
    return ArenaOverHost::Prepare(piece, begin, end);
  }
  void Deliver(const Piece& piece, const SlotRange& range, Done done) override {
    memory().Deliver(piece, range, std::move(done));
  }

 private:
  const std::shared_future<void> prepared_;
};

// An arena that has memory for the first batch of each slot, and none when it is asked again.
class ArenaThatPreparesOnce final : public ArenaOverHost {
 public:
  using ArenaOverHost::ArenaOverHost;
  Status Prepare(const Piece& piece, uint32_t begin, uint32_t end) override {
    if (prepared_[piece.slot].exchange(true)) return ResourceExhausted("the host has no memory left");
    return ArenaOverHost::Prepare(piece, begin, end);
  }
  void Deliver(const Piece& piece, const SlotRange& range, Done done) override {
    memory().Deliver(piece, range, std::move(done));
  }

 private:
  std::array<std::atomic<bool>, kMaxSlots> prepared_{};
};

struct ProducedOptions {
  uint32_t lanes = 0;
  uint32_t task_timeout_ms = 0;
  Sharing sharing = Sharing::kExclusive;
  std::shared_future<void> slot_0_prepared = {};  // if valid
  bool prepares_once = false;
};

// A feed of numbers, whose processes a test plays.
class FeedProcessesTest : public FeedTest {
 protected:
  FeedProcessesTest() : FeedTest(pinfeed::Producer::kNative) {}

  void Open(uint64_t samples, uint32_t slots, uint64_t epochs = 0, ProducedOptions options = {}) {
    FeedSpec spec = Spec(kBatchSize, epochs);
    spec.sharing = options.sharing;
    spec.dataset.produced =
        ProducedDataset{"numbers",      samples,       {{"data", DType::kInt64, {NumberDataset::kNumbers}}},
                        "made by hand", options.lanes, options.task_timeout_ms};
    auto sampler = Sampler::Create(spec, samples).value();
    auto layout = BatchLayout::Create(TensorsOf(*spec.dataset.produced), kBatchSize).value();
    const bool shared = options.sharing != Sharing::kExclusive;
    const bool slow = options.slot_0_prepared.valid();
    auto host = HostArena::Create(layout, slots, shared, pool_).value();
    std::unique_ptr<Arena> arena;
    if (slow) {
      arena = std::make_unique<ArenaWithASlowSlot>(std::move(host), options.slot_0_prepared);
    } else if (options.prepares_once) {
      arena = std::make_unique<ArenaThatPreparesOnce>(std::move(host));
    } else {
      arena = std::move(host);
    }
    std::unique_ptr<Arena> staging;
    if (shared) staging = HostArena::Create(layout, slots, false, pool_).value();
    filled_ = shared ? staging.get() : arena.get();
    auto producer = std::make_unique<ProcessBatchProducer>(1, spec, sampler, *workers_, std::move(staging));
    group_ = producer->processes();
    feed_ = feeds_.emplace_back(
        MakeOver(spec, std::move(producer), std::move(layout), sampler, std::move(arena)));
    client_.emplace(*feed_, Sampler::Start{});
    const uint32_t kept = options.task_timeout_ms == 0 ? 0 : std::min(4U, std::max(slots, 3U) - 2);
    const uint64_t all = (samples + kBatchSize - 1) / kBatchSize;
    const uint64_t batches = std::min<uint64_t>(slots - kept, all);
    WaitFor([&] { return group_->counts().waiting == batches - (slow ? 1 : 0); });
  }
  struct Attached {
    std::shared_ptr<PlayedProcess> link;
    ProducerGroup::ProducerId id;
  };
  Attached Start(pid_t pid = 100, uint32_t lane = 0) {
    auto link = std::make_shared<PlayedProcess>();
    const ProducerGroup::ProducerId id = group_->Attach(link, pid, lane).value();
    return {link, id};
  }
  // What a process does with a task: each sample is its id, which it reads in the slot.
  void Fill(const ProducerTask& task) {
    const Piece piece{task.slot, 0, task.samples, 0};
    const auto* const ids = reinterpret_cast<const int64_t*>(filled_->FillAddress(piece, 1));
    for (uint32_t i = 0; i < task.samples; ++i)
      std::fill_n(NumbersOf(task, i), NumberDataset::kNumbers, ids[i]);
  }
  int64_t* NumbersOf(const ProducerTask& task, uint32_t sample) {
    const Piece piece{task.slot, 0, task.samples, 0};
    return reinterpret_cast<int64_t*>(filled_->FillAddress(piece, 0)) + sample * NumberDataset::kNumbers;
  }
  // What a process does that goes on too late. Its writes race with nothing that counts, which is the point.
  __attribute__((no_sanitize("thread"))) void Scribble(const ProducerTask& task) {
    int64_t* const numbers = NumbersOf(task, 0);
    const size_t count = size_t{task.samples} * NumberDataset::kNumbers;
    for (size_t i = 0; i < count; ++i) numbers[i] = -1;
  }
  static ProducerTask Await(PlayedProcess& process) {
    std::optional<ProducerTask> task;
    WaitFor([&] { return (task = process.Take()).has_value(); });
    return *task;
  }
  void FillAndReport(const Attached& process, const ProducerTask& task) {
    Fill(task);
    ASSERT_OK(group_->OnDone(process.id, task.task, OkStatus()));
  }
  // Takes the next batch and compares its samples with the sampler's.
  void ExpectBatch(uint64_t epoch, uint64_t index) {
    const std::optional<BatchDescriptor> batch = client_->Next();
    ASSERT_TRUE(batch) << epoch << " " << index;
    EXPECT_EQ(batch->epoch, epoch);
    EXPECT_EQ(batch->batch_index, index);
    EXPECT_EQ(client_->Ids(*batch), Expected(*feed_, epoch, index));
    client_->Release(*batch, *feed_);
  }

  // Processes do what they are sent until there is a batch to take. Returns the slots that they filled.
  std::set<uint32_t> FillUntilReady(std::vector<const Attached*> processes) {
    std::set<uint32_t> slots;
    WaitFor([&] {
      for (const Attached* process : processes) {
        while (const std::optional<ProducerTask> task = process->link->Take()) {
          slots.insert(task->slot);
          FillAndReport(*process, *task);
        }
      }
      return client_->ready() > 0;
    });
    return slots;
  }
  // Waits until every task is older than a time limit of 1 ms.
  static void BecomeLate() {
    const auto begin = std::chrono::steady_clock::now();
    WaitFor([&] { return std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(2); });
  }
  // Waits until `count` batches have been moved away from a late producer.
  void AwaitReplaced(const Attached& late, uint64_t count) {
    WaitFor([&] {
      group_->ReplaceLate(late.id);
      return group_->counts().dealt_again == count;
    });
  }

  Arena* filled_ = nullptr;  // what processes fill: the feed's arena, or its staging memory
  std::shared_ptr<ProducerGroup> group_;
  std::shared_ptr<Feed> feed_;
  std::optional<AttachedClient> client_;
};

}  // namespace pinfeed
