// SPDX-License-Identifier: Apache-2.0
// A feed over a dataset made of numbers, and a client that reads its pages in this process.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/os/memfd.h"
#include "server/feed/feed.h"
#include "server/loading/native_batch_producer.h"
#include "server/memory/host_arena.h"
#include "tests/support/testing.h"
#include "tests/unit/feed/unruly_producer.h"

namespace pinfeed {

// Sample i is kNumbers times the value i; the samples in `bad` cannot be read. `before_read` runs in the
// worker before each read.
class NumberDataset final : public Dataset {
 public:
  static constexpr int64_t kNumbers = 64;
  explicit NumberDataset(uint64_t samples, std::set<uint64_t> bad = {},
                         std::function<void(uint64_t)> before_read = {})
      : bad_(std::move(bad)), before_read_(std::move(before_read)) {
    info_.format = "numbers";
    info_.path = "/numbers";
    info_.samples = samples;
    info_.fingerprint = "0123456789abcdef";
    info_.fields = {{{"data", DType::kInt64, {kNumbers}}, FieldKind::kTensor}};
  }
  const DatasetInfo& info() const override { return info_; }
  Status ReadTensor(uint64_t id, size_t /*field*/, std::span<std::byte> out) const override {
    if (before_read_) before_read_(id);
    if (bad_.contains(id)) return DataLoss("read number " + std::to_string(id) + ": it is bad");
    auto* numbers = reinterpret_cast<int64_t*>(out.data());
    std::fill(numbers, numbers + kNumbers, static_cast<int64_t>(id));
    return OkStatus();
  }
  Status ReadEncoded(uint64_t /*id*/, size_t /*field*/, std::vector<std::byte>& /*out*/) const override {
    return Internal("numbers are no images");
  }
  std::string Describe(uint64_t id) const override { return "number " + std::to_string(id); }

 private:
  DatasetInfo info_;
  std::set<uint64_t> bad_;
  std::function<void(uint64_t)> before_read_;
};

// Slots in host memory, which a test fills or delivers in another way.
class ArenaOverHost : public Arena {
 public:
  explicit ArenaOverHost(std::unique_ptr<HostArena> memory)
      : Arena(memory->id(), memory->slot_count(), memory->layout()), memory_(std::move(memory)) {}
  Backend backend() const override { return Backend::kHost; }
  int fd() const override { return memory_->fd(); }
  Status Prepare(const Piece& piece, uint32_t begin, uint32_t end) override {
    return memory_->Prepare(piece, begin, end);
  }
  std::byte* FillAddress(const Piece& piece, size_t tensor) override {
    return memory_->FillAddress(piece, tensor);
  }

 protected:
  HostArena& memory() { return *memory_; }

 private:
  const std::unique_ptr<HostArena> memory_;
};

// What a client process would do with its pages, step by step.
class PageClient {
 public:
  explicit PageClient(const Feed& feed)
      : feed_(feed),
        publish_(std::move(Mapping::Map(participant_.pages->publish_fd(), kPublishPageBytes,
                                        Access::kReadOnly, false))
                     .value()),
        release_(std::move(Mapping::Map(participant_.pages->release_fd(), kReleasePageBytes,
                                        Access::kReadWrite, false))
                     .value()),
        arena_(std::move(Mapping::Map(feed.arena().fd(), feed.arena().bytes(), Access::kReadOnly, false))
                   .value()) {}

  Participant& participant() { return participant_; }
  // The same, which wants batches from `start` on.
  Participant& From(const std::optional<Sampler::Start>& start) {
    participant_.start = start;
    return participant_;
  }
  const PublishPage& page() const { return *reinterpret_cast<const PublishPage*>(publish_.data()); }
  ReleasePage& words() const { return *reinterpret_cast<ReleasePage*>(release_.data()); }
  FeedState state() const { return static_cast<FeedState>(page().state.load(std::memory_order_acquire)); }
  uint64_t ready() const { return page().published.load(std::memory_order_acquire) - taken_; }

  // The next batch, once it is there; nothing when the feed ended, failed or drained before, or evicted us.
  std::optional<BatchDescriptor> Next() {
    for (;;) {
      const bool final = state() != FeedState::kRunning;
      if (ready() > 0) {
        const BatchDescriptor batch = page().ring[taken_++ % kMaxSlots];
        words().taken.store(taken_, std::memory_order_seq_cst);
        if (page().state.load(std::memory_order_seq_cst) == static_cast<uint32_t>(FeedState::kEvicted)) {
          while (page().limit.load(std::memory_order_acquire) == kUnlimited) std::this_thread::yield();
          if (batch.sequence >= page().limit.load(std::memory_order_relaxed)) return std::nullopt;
        }
        return batch;
      }
      if (final) return std::nullopt;
      std::this_thread::yield();  // the watchdog ends a test that never gets here
    }
  }
  // Of the batch's samples.
  std::span<const std::byte> Tensor(const BatchDescriptor& batch, size_t tensor) const {
    const TensorPlace& place = feed_.layout().tensors[tensor];
    return {arena_.data() + batch.slot * feed_.arena().slot_stride() + place.offset,
            batch.samples * place.sample_bytes};
  }
  const int64_t* Data(const BatchDescriptor& batch) const {
    return reinterpret_cast<const int64_t*>(Tensor(batch, 0).data());
  }
  // The samples' numbers; fails the test when a sample is not whole.
  std::vector<uint64_t> Ids(const BatchDescriptor& batch) const {
    std::vector<uint64_t> ids;
    for (uint32_t i = 0; i < batch.samples; ++i) {
      const int64_t* sample = Data(batch) + i * NumberDataset::kNumbers;
      for (int64_t k = 1; k < NumberDataset::kNumbers; ++k)
        EXPECT_EQ(sample[k], sample[0]) << "torn sample " << i;
      ids.push_back(static_cast<uint64_t>(sample[0]));
    }
    return ids;
  }
  // As the client library does it: the word, then the doorbell if the daemon asks for it. The test pokes the
  // feed in the doorbell's stead.
  void Release(const BatchDescriptor& batch, Feed& feed) {
    words().slots[batch.slot].generation.store(batch.generation, std::memory_order_seq_cst);
    if (page().starved.load(std::memory_order_seq_cst) != 0) feed.ReadReleases();
  }

 private:
  struct WithPages : Participant {
    explicit WithPages(const Feed& feed) {
      pages = std::move(ControlPages::Create(feed.arena().slot_count())).value();
    }
  };

  const Feed& feed_;
  WithPages participant_{feed_};
  Mapping publish_;
  Mapping release_;
  Mapping arena_;
  uint64_t taken_ = 0;
};

// The process has ended / an operator evicts it.
inline Departure Ended() {
  return {DepartureReason::kProcessEnded};
}
inline Departure Evicted(const Status& error) {
  return {DepartureReason::kEvicted, error};
}
enum class Producer { kNative, kUnruly };

// A worker pool, a memory pool and the feeds made over them.
class FeedTest : public ::testing::Test, public ::testing::WithParamInterface<Producer> {
 protected:
  // `producer`: of a suite that runs over one kind only.
  explicit FeedTest(std::optional<Producer> producer = std::nullopt)
      : producer_(producer ? *producer : GetParam()), workers_(std::make_unique<WorkerPool>(3)) {
    workers_->Start();
  }
  ~FeedTest() override {
    EndFeeds();
    workers_->Stop();
  }

  static FeedSpec Spec(uint32_t batch_size, uint64_t epochs = 0) {
    FeedSpec spec;
    spec.batch_size = batch_size;
    spec.order = Order::kShuffle;
    spec.seed = 5;
    spec.epochs = epochs;
    return spec;
  }

  // `over`: makes the feed's arena of one in host memory; empty: it is that one.
  using Over = std::function<std::unique_ptr<Arena>(std::unique_ptr<HostArena>)>;
  std::shared_ptr<Feed> Make(const FeedSpec& spec, std::shared_ptr<const Dataset> dataset, uint32_t slots = 4,
                             const Over& over = {}) {
    return feeds_.emplace_back(MakeUnshared(spec, std::move(dataset), slots, over));
  }
  std::unique_ptr<Feed> MakeUnshared(const FeedSpec& spec, std::shared_ptr<const Dataset> dataset,
                                     uint32_t slots = 4, const Over& over = {}) {
    const uint64_t samples = dataset->info().samples;
    auto loader = std::move(SampleLoader::Create(dataset, spec)).value();
    auto layout = std::move(BatchLayout::Create(loader->outputs(), spec.batch_size)).value();
    auto host =
        std::move(HostArena::Create(layout, slots, spec.sharing != Sharing::kExclusive, pool_)).value();
    std::unique_ptr<Arena> arena = over ? over(std::move(host)) : std::move(host);
    auto sampler = std::move(Sampler::Create(spec, samples)).value();
    std::unique_ptr<BatchProducer> producer;
    if (producer_ == Producer::kUnruly) {
      producer = std::make_unique<UnrulyProducer>(
          UnrulyProducer::Source{dataset->info(), sampler, spec.on_bad_sample, loader->outputs(),
                                 [dataset](uint64_t sample, size_t field, std::span<std::byte> place) {
                                   return dataset->ReadTensor(sample, field, place);
                                 }});
    } else {
      producer = std::make_unique<NativeBatchProducer>(std::move(loader), sampler, spec.on_bad_sample, layout,
                                                       *workers_);
    }
    return MakeOver(spec, std::move(producer), std::move(layout), sampler, std::move(arena));
  }
  std::unique_ptr<Feed> MakeOver(const FeedSpec& spec, std::unique_ptr<BatchProducer> producer,
                                 BatchLayout layout, const Sampler& sampler, std::unique_ptr<Arena> arena) {
    return std::make_unique<Feed>(Feed::Parts{++last_id_, spec, std::move(layout), sampler,
                                              std::move(producer), std::move(arena), kOwner, &tracer_});
  }

  // The ids the sampler would put into a batch.
  static std::vector<uint64_t> Expected(const Feed& feed, uint64_t epoch, uint64_t batch) {
    const BatchPlan plan = feed.sampler().Plan(epoch, batch);
    std::vector<uint64_t> ids;
    const BatchSamples samples = feed.sampler().SamplesOf(plan);
    for (uint32_t i = 0; i < plan.samples; ++i) ids.push_back(samples[i]);
    return ids;
  }

  static void WaitFor(const std::function<bool()>& condition) {
    while (!condition()) std::this_thread::yield();
  }

  static void StopAndWait(Feed& feed) {
    const auto at_rest = std::make_shared<std::promise<void>>();
    feed.Stop([at_rest] { at_rest->set_value(); });
    at_rest->get_future().wait();
  }

  // Whoever ended a feed's last task may have a share of it for a moment longer, and is not to destroy it.
  void EndFeeds() {
    for (const auto& feed : feeds_) {
      StopAndWait(*feed);
      WaitFor([&] { return feed.use_count() == 1; });
    }
    feeds_.clear();
  }

  static constexpr uid_t kOwner = 1000;

  const Producer producer_;
  Tracer tracer_;
  MemoryBudget pool_{uint64_t{1} << 30};
  std::unique_ptr<WorkerPool> workers_;
  std::vector<std::shared_ptr<Feed>> feeds_;
  uint64_t last_id_ = 0;
};

// The feed's promises do not depend on what fills its batches.
#define PF_OVER_BOTH_PRODUCERS(Suite)                                            \
  INSTANTIATE_TEST_SUITE_P(                                                      \
      Producers, Suite, ::testing::Values(Producer::kNative, Producer::kUnruly), \
      [](const auto& test) { return test.param == Producer::kNative ? "Native" : "Unruly"; })

// A feed of a group of two, and both of them.
class FeedPairTest : public FeedTest {
 protected:
  using FeedTest::FeedTest;
  void Open(Sharing sharing, uint64_t epochs, uint64_t samples, uint32_t slots) {
    FeedSpec spec = Spec(8, epochs);
    spec.sharing = sharing;
    spec.group_size = 2;
    feed_ = Make(spec, std::make_shared<NumberDataset>(samples), slots);
    first_.emplace(*feed_);
    second_.emplace(*feed_);
    ASSERT_OK(feed_->Attach(first_->participant()));
    ASSERT_OK(feed_->Attach(second_->participant()));
  }

  std::shared_ptr<Feed> feed_;
  std::optional<PageClient> first_;
  std::optional<PageClient> second_;
};

}  // namespace pinfeed
