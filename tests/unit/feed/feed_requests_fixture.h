// SPDX-License-Identifier: Apache-2.0
// A feed of requests, whose clients, consumers and clock a test plays.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "server/loading/request_batch_producer.h"
#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {

using std::chrono::microseconds;

inline constexpr uint32_t kMaxRequests = 4;  // of a batch
inline constexpr uint32_t kDelayUs = 1000;
inline constexpr uint32_t kSlots = 16;  // of a client
inline constexpr uint64_t kRequestBytes = sizeof(int64_t) * NumberDataset::kNumbers;

// A client process: its memory, and what it was told.
class PlayedClient final : public BatcherQueue::Client {
 public:
  struct Answered {
    Status status;
    std::string bytes;
  };
  void Write(uint32_t slot, int64_t number) { memory_[slot].fill(number); }
  void Break(uint32_t slot) { broken_.insert(slot); }
  // While it is held, what is read waits.
  void Hold(bool held) {
    held_ = held;
    held_.notify_all();
  }

  Result<std::span<const std::byte>> Read(uint32_t slot, uint64_t bytes) override {
    ++reads;
    held_.wait(true);
    if (broken_.contains(slot)) return DataLoss("broken");
    return std::as_bytes(std::span(memory_[slot])).first(bytes);
  }
  void Answer(uint32_t slot, const Status& status, std::span<const std::byte> answer) override {
    const MutexLock lock(mutex_);
    const bool first =
        answers_
            .emplace(slot, Answered{status, {reinterpret_cast<const char*>(answer.data()), answer.size()}})
            .second;
    EXPECT_TRUE(first) << "slot " << slot << " was answered twice";
  }
  void HangUp() override { hung_up = true; }

  // What slot was told since the last call; nothing if it was not.
  std::optional<Answered> Take(uint32_t slot) {
    const MutexLock lock(mutex_);
    const auto found = answers_.find(slot);
    if (found == answers_.end()) return std::nullopt;
    Answered answered = found->second;
    answers_.erase(found);
    return answered;
  }
  Code CodeOf(uint32_t slot) {
    const std::optional<Answered> answered = Take(slot);
    return answered ? answered->status.code() : Code::kOk;
  }

  std::atomic<bool> hung_up{false};
  std::atomic<uint32_t> reads{0};  // begun

 private:
  std::atomic<bool> held_{false};
  std::array<std::array<int64_t, NumberDataset::kNumbers>, kSlots> memory_{};
  std::set<uint32_t> broken_;
  Mutex mutex_;
  std::map<uint32_t, Answered> answers_ PF_GUARDED_BY(mutex_);
};

class FeedRequestsTest : public FeedTest {
 protected:
  FeedRequestsTest() : FeedTest(pinfeed::Producer::kNative) {}

  void Open(bool redeal = false, uint32_t queue_limit = 8, const Over& over = {}) {
    FeedSpec spec;
    spec.batch_size = kMaxRequests;
    spec.sharing = Sharing::kQueue;
    spec.group = "numbers";
    spec.batcher = BatcherSpec{
        kDelayUs, queue_limit, 0, max_answer_bytes_, TensorSpec{"", DType::kInt64, {NumberDataset::kNumbers}},
        redeal};
    std::shared_ptr<const Dataset> dataset = MakeRequestDataset(spec);
    auto sampler = Sampler::Create(spec, dataset->info().samples).value();
    auto loader = SampleLoader::Create(std::move(dataset), spec).value();
    auto layout = BatchLayout::Create(loader->outputs(), kMaxRequests).value();
    auto host = HostArena::Create(layout, 3, true, pool_).value();
    std::unique_ptr<Arena> arena = over ? over(std::move(host)) : std::move(host);
    auto producer = std::make_unique<RequestBatchProducer>(*spec.batcher, std::move(loader), *workers_,
                                                           [this] { return now_.load(); });
    queue_ = producer->requests();
    feed_ = feeds_.emplace_back(
        MakeOver(spec, std::move(producer), std::move(layout), sampler, std::move(arena)));
    consumer_.emplace(*feed_);
    ASSERT_OK(queue_->AddClient(client_));
  }

  void Pass(microseconds time) { now_ = now_.load() + time; }
  // Submits the slot's own number.
  void Submit(uint32_t slot, std::optional<microseconds> deadline = std::nullopt) {
    client_->Write(slot, slot);
    BatcherQueue::Request request{client_, slot, kRequestBytes};
    if (deadline) request.deadline = now_.load() + *deadline;
    ASSERT_OK(queue_->Submit(std::move(request)));
  }
  void SubmitAll(std::initializer_list<uint32_t> slots) {
    for (const uint32_t slot : slots) Submit(slot);
  }
  // Closes a batch that is not full.
  void Close() {
    Pass(microseconds(kDelayUs));
    queue_->Poll();
  }
  // The next batch of the feed.
  std::optional<BatchDescriptor> Next() {
    if (consumer_->ready() == 0) consumer_->Wait(*feed_);
    return consumer_->Next();
  }
  // The same, released without a word to the queue.
  std::optional<BatchDescriptor> NextUntaken() {
    const std::optional<BatchDescriptor> batch = Next();
    if (batch) consumer_->Release(*batch, *feed_);
    return batch;
  }
  // Takes the next batch as `consumer`, and returns its numbers.
  std::vector<uint64_t> TakeBatch(BatcherQueue::ConsumerId consumer, uint32_t open) {
    const std::optional<BatchDescriptor> batch = Next();
    if (!batch) return {};
    key_ = {batch->epoch, batch->batch_index};
    EXPECT_EQ(queue_->Take(key_, consumer), open);
    std::vector<uint64_t> numbers = consumer_->Ids(*batch);
    consumer_->Release(*batch, *feed_);
    return numbers;
  }
  Result<uint32_t> Answer(BatcherQueue::ConsumerId consumer, const std::vector<std::string>& texts) {
    std::vector<BatcherQueue::Output> outputs;
    for (const std::string& text : texts)
      outputs.push_back({text.starts_with("!"), text.size(), std::as_bytes(std::span(text))});
    size_t next = 0;
    Result<uint32_t> answered = queue_->Answer(key_, consumer, outputs, &next);
    EXPECT_TRUE(!answered.ok() || next == outputs.size()) << "small ones are passed on at once";
    return answered;
  }
  void WaitForReads(uint32_t reads) {
    WaitFor([&] { return client_->reads == reads; });
  }
  uint64_t EndedAs(RequestEnd end) const { return queue_->counts().ends[static_cast<size_t>(end)]; }

  std::atomic<BatcherQueue::Time> now_{BatcherQueue::Time(std::chrono::hours(1))};
  uint32_t max_answer_bytes_ = 8;
  std::shared_ptr<PlayedClient> client_ = std::make_shared<PlayedClient>();
  std::shared_ptr<BatcherQueue> queue_;
  std::shared_ptr<Feed> feed_;
  std::optional<AttachedClient> consumer_;
  BatcherQueue::BatchKey key_;
};

}  // namespace pinfeed
