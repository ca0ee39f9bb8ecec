// SPDX-License-Identifier: Apache-2.0
// Feeds over a dataset made of numbers, by every producer.
#pragma once

#include <algorithm>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/os/memfd.h"
#include "server/dataset/selected_fields.h"
#include "server/feed/feed.h"
#include "server/loading/native_batch_producer.h"
#include "server/memory/host_arena.h"
#include "tests/support/testing.h"
#include "tests/unit/feed/number_dataset.h"
#include "tests/unit/feed/page_client.h"
#include "tests/unit/feed/unruly_producer.h"

namespace pinfeed {

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

// The process has ended / an operator evicts it.
inline Departure Ended() {
  return {DepartureReason::kProcessEnded};
}
inline Departure Evicted(const Status& error) {
  return {DepartureReason::kEvicted, error};
}
enum class Producer { kNative, kRemote, kUnruly };  // kRemote: native, of a dataset that readers read
inline std::string NameOf(Producer producer) {
  switch (producer) {
    case Producer::kNative:
      return "Native";
    case Producer::kRemote:
      return "Remote";
    case Producer::kUnruly:
      break;
  }
  return "Unruly";
}

// A worker pool, a memory pool and the feeds made over them.
class FeedTest : public ::testing::Test, public ::testing::WithParamInterface<Producer> {
 protected:
  // `producer`: of a suite that runs over one kind only.
  explicit FeedTest(std::optional<Producer> producer = std::nullopt)
      : producer_(producer ? *producer : GetParam()), workers_(std::make_unique<WorkerPool>(3)) {
    (void)spdlog::default_logger();  // made here: the thread sanitizer does not see how that library
                                     // synchronises
    workers_->Start();
    if (producer_ == Producer::kRemote) readers_.Start();
  }
  ~FeedTest() override {
    EndFeeds();
    readers_.Stop();
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
    if (producer_ == Producer::kRemote) dataset = std::make_shared<const RemoteDataset>(std::move(dataset));
    dataset = SelectFields(std::move(dataset), spec.fields, spec.sample_path).value();
    auto loader = SampleLoader::Create(dataset, spec).value();
    auto layout = BatchLayout::Create(loader->outputs(), spec.batch_size).value();
    auto host = HostArena::Create(layout, slots, spec.sharing != Sharing::kExclusive, pool_).value();
    std::unique_ptr<Arena> arena = over ? over(std::move(host)) : std::move(host);
    auto sampler = Sampler::Create(spec, samples).value();
    std::unique_ptr<BatchProducer> producer;
    if (producer_ == Producer::kUnruly) {
      producer = std::make_unique<UnrulyProducer>(
          UnrulyProducer::Source{dataset->info(), sampler, spec.on_bad_sample, loader->outputs(),
                                 [dataset](uint64_t sample, size_t field, std::span<std::byte> place) {
                                   return dataset->ReadTensor(sample, field, place);
                                 }});
    } else {
      producer = std::make_unique<NativeBatchProducer>(std::move(loader), sampler, spec, layout, *workers_,
                                                       readers_);
    }
    return MakeOver(spec, std::move(producer), std::move(layout), sampler, std::move(arena));
  }
  std::unique_ptr<Feed> MakeOver(const FeedSpec& spec, std::unique_ptr<BatchProducer> producer,
                                 BatchLayout layout, const Sampler& sampler, std::unique_ptr<Arena> arena) {
    return std::make_unique<Feed>(FeedParts{.spec = spec,
                                            .layout = std::move(layout),
                                            .sampler = sampler,
                                            .producer = std::move(producer),
                                            .id = ++last_id_,
                                            .owner = kOwner,
                                            .tracer = &tracer_,
                                            .arena = std::move(arena)});
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

  // Of 50 samples in batches of 8, seven an epoch: whatever the workers, the slots and where it begins.
  void CheckSameBytes(const FeedSpec& spec, const std::shared_ptr<const Dataset>& dataset) {
    const auto run = [&](uint32_t slots, Sampler::Start start, uint64_t batches) {
      const auto feed = Make(spec, dataset, slots);
      AttachedClient client(*feed, start);
      std::vector<std::vector<std::byte>> out;
      for (uint64_t b = 0; b < batches; ++b) {
        const auto batch = client.Next();
        out.emplace_back();
        for (size_t t = 0; t < feed->layout().tensors.size(); ++t)
          std::ranges::copy(client.Tensor(*batch, t), std::back_inserter(out.back()));
        client.Release(*batch, *feed);
      }
      return out;
    };
    const auto whole = run(3, {0, 0}, 30);
    for (const uint32_t threads : {1U, 2U, 8U}) {
      EndFeeds();
      workers_->Stop();
      workers_ = std::make_unique<WorkerPool>(threads);
      workers_->Start();
      EXPECT_EQ(run(3 + threads, {0, 0}, 30), whole);
      // Batch 10 of the run is batch 3 of epoch 1.
      EXPECT_EQ(run(4, {1, 3}, 20), std::vector(whole.begin() + 10, whole.end()));
    }
  }

  static constexpr uid_t kOwner = 1000;

  const Producer producer_;
  Tracer tracer_;
  MemoryBudget pool_{uint64_t{1} << 30};
  std::unique_ptr<WorkerPool> workers_;
  WorkerPool readers_{4, UINT32_MAX, PoolKind::kReaders};  // of remote datasets, once a test starts them
  std::vector<std::shared_ptr<Feed>> feeds_;
  uint64_t last_id_ = 0;
};

// The feed's promises do not depend on what fills its batches.
#define PF_OVER_ALL_PRODUCERS(Suite)                                                                   \
  INSTANTIATE_TEST_SUITE_P(Producers, Suite,                                                           \
                           ::testing::Values(Producer::kNative, Producer::kRemote, Producer::kUnruly), \
                           [](const auto& test) { return NameOf(test.param); })
// Nor on where the native one reads from.
#define PF_OVER_DATASETS(Suite)                                                                      \
  INSTANTIATE_TEST_SUITE_P(Datasets, Suite, ::testing::Values(Producer::kNative, Producer::kRemote), \
                           [](const auto& test) { return NameOf(test.param); })

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
  }

  std::shared_ptr<Feed> feed_;
  std::optional<AttachedClient> first_;
  std::optional<AttachedClient> second_;
};

}  // namespace pinfeed
