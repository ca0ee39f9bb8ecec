// SPDX-License-Identifier: Apache-2.0
// Feeds over storages whose reads are slow, fail, or do not return, with one worker thread.
#include <algorithm>
#include <future>
#include <latch>
#include <set>

#include "server/dataset/open_dataset.h"
#include "tests/support/memory_storage.h"
#include "tests/support/transform_specs.h"
#include "tests/unit/dataset/npy_file.h"
#include "tests/unit/feed/feed_fixture.h"
#include "tests/unit/image/image_fixture.h"

namespace pinfeed {
namespace {

constexpr uint64_t kSamples = 100;
constexpr uint64_t kRowBytes = 12;

class FeedRemoteTest : public FeedTest {
 protected:
  FeedRemoteTest() : FeedTest(Producer::kNative) {
    workers_ = std::make_unique<WorkerPool>(1);
    workers_->Start();
    readers_.Start();
    Fill(local_);
    Fill(remote_);
  }
  // A reader may read ahead of a feed that has ended, and the storages go before the pools.
  void TearDown() override {
    EndFeeds();
    readers_.Stop();
  }

  static std::string ImagePath(uint64_t id) {
    const std::string number = std::to_string(1000 + id);
    return "images/c/" + number + ".jpg";
  }
  static void Fill(MemoryStorage& storage) {
    for (uint64_t id = 0; id < kSamples; ++id) {
      const std::vector<std::byte> jpeg = MakeJpeg({.width = 16, .height = 16}, static_cast<uint32_t>(id));
      storage.Write(ImagePath(id), {reinterpret_cast<const char*>(jpeg.data()), jpeg.size()});
    }
    std::string rows;
    for (uint64_t i = 0; i < kSamples * kRowBytes; ++i) rows += static_cast<char>(i * 7);
    storage.Write("rows.npy", NpyHeaderBytes("|u1", "(100, 3, 2, 2)", false) + rows);
  }

  static std::shared_ptr<const Dataset> Open(MemoryStorage& storage, const std::string& path) {
    DatasetSpec spec;
    spec.path = "memory:/" + path;
    return OpenDataset(storage.At(path), spec).value();
  }
  std::shared_ptr<const Dataset> Images(MemoryStorage& storage) const { return Open(storage, "images"); }
  std::shared_ptr<const Dataset> Rows(MemoryStorage& storage) const { return Open(storage, "rows.npy"); }

  static FeedSpec ImageSpec(uint32_t batch_size, OnBadSample on_bad_sample = OnBadSample::kFail) {
    FeedSpec spec = Spec(batch_size, 1);
    spec.order = Order::kSequential;
    spec.on_bad_sample = on_bad_sample;
    spec.sample_ids = spec.valid = true;
    spec.transforms = {CenterCrop{12, 12}, RandomHorizontalFlip{}};
    return spec;
  }
  static FeedSpec RowSpec(uint32_t batch_size, OnBadSample on_bad_sample = OnBadSample::kFail) {
    FeedSpec spec = ImageSpec(batch_size, on_bad_sample);
    spec.transforms.clear();
    return spec;
  }

  using Batches = std::vector<std::vector<std::byte>>;
  // All batches of the feed, and what it ended as.
  static Batches Drain(Feed& feed, PageClient& client, FeedState* state = nullptr) {
    Batches all;
    while (const auto batch = client.Next()) {
      all.emplace_back();
      for (size_t t = 0; t < feed.layout().tensors.size(); ++t) {
        const auto bytes = client.Tensor(*batch, t);
        all.back().insert(all.back().end(), bytes.begin(), bytes.end());
      }
      client.Release(*batch, feed);
    }
    if (state != nullptr) *state = client.state();
    feed.Depart(client.participant(), Ended());
    return all;
  }
  Batches Run(const FeedSpec& spec, std::shared_ptr<const Dataset> dataset, FeedState* state = nullptr) {
    const auto feed = Make(spec, std::move(dataset));
    AttachedClient client(*feed, Sampler::Start{});
    return Drain(*feed, client, state);
  }

  MemoryStorage local_;
  MemoryStorage remote_{true};
};

// Batches of less than a section, of several, and of a whole number of them.
TEST_F(FeedRemoteTest, GivesTheBytesOfALocalDataset) {
  for (const uint32_t batch_size : {1U, 7U, 64U, 100U}) {
    SCOPED_TRACE(batch_size);
    const Batches images = Run(ImageSpec(batch_size), Images(local_));
    EXPECT_EQ(images.size(), (kSamples + batch_size - 1) / batch_size);
    EXPECT_EQ(Run(ImageSpec(batch_size), Images(remote_)), images);
    EXPECT_EQ(Run(RowSpec(batch_size), Rows(remote_)), Run(RowSpec(batch_size), Rows(local_)));
    FeedSpec flipped = RowSpec(batch_size);  // tensors that are transformed
    flipped.image_layout = ImageLayout::kChw;
    flipped.transforms = {RandomHorizontalFlip{}};
    EXPECT_EQ(Run(flipped, Rows(remote_)), Run(flipped, Rows(local_)));
  }
}

TEST_F(FeedRemoteTest, AReadThatHangsHoldsUpNoOtherFeed) {
  const Batches expected = Run(ImageSpec(10), Images(local_));
  const Batches rows = Run(RowSpec(10), Rows(local_));
  remote_.Hang(ImagePath(3));
  const auto hung = Make(ImageSpec(10), Images(remote_));
  AttachedClient client(*hung, Sampler::Start{});
  remote_.AwaitHung(1);
  EXPECT_EQ(Run(ImageSpec(10), Images(local_)), expected);
  EXPECT_EQ(Run(RowSpec(10), Rows(remote_)), rows);
  EXPECT_EQ(client.ready(), 0U) << "the first batch waits for its sample";
  remote_.Resume();
  EXPECT_EQ(Drain(*hung, client), expected);
}

TEST_F(FeedRemoteTest, ReadsStraightIntoTheBatchHoldUpNoWorkerEither) {
  const Batches expected = Run(RowSpec(10), Rows(local_));
  const auto dataset = Rows(remote_);
  remote_.Hang("rows.npy");
  const auto hung = Make(RowSpec(10), dataset);
  AttachedClient client(*hung, Sampler::Start{});
  remote_.AwaitHung(readers_.threads());
  EXPECT_EQ(Run(ImageSpec(10), Images(local_)).size(), 10U);
  remote_.Resume();
  EXPECT_EQ(Drain(*hung, client), expected);
}

struct Fault {
  const char* name;
  void (*make)(MemoryStorage&, const std::string& path);
  const char* reason;
};
const std::vector<Fault>& Faults() {
  static const std::vector<Fault> faults = {
      {"short", [](MemoryStorage& storage, const std::string& path) { storage.Cut(path, 10); }, "file ends"},
      {"EIO", [](MemoryStorage& storage, const std::string& path) { storage.Break(path); },
       "Input/output error"},
      {"vanished", [](MemoryStorage& storage, const std::string& path) { storage.Remove(path); },
       "no such object"}};
  return faults;
}

TEST_F(FeedRemoteTest, ABadSampleIsFailedSkippedOrZeroedAsOfALocalDataset) {
  for (const Fault& fault : Faults()) {
    for (const OnBadSample choice : {OnBadSample::kFail, OnBadSample::kSkip, OnBadSample::kZero}) {
      SCOPED_TRACE(std::string(fault.name) + " " + std::to_string(static_cast<int>(choice)));
      Batches batches[2];
      for (MemoryStorage* storage : {&local_, &remote_}) {
        Fill(*storage);
        const auto dataset = Images(*storage);
        const std::vector<uint64_t> ids =
            choice == OnBadSample::kFail ? std::vector<uint64_t>{45} : std::vector<uint64_t>{0, 17, 45, 99};
        for (const uint64_t id : ids) fault.make(*storage, ImagePath(id));
        const auto feed = Make(ImageSpec(40, choice), dataset);
        AttachedClient client(*feed, Sampler::Start{});
        FeedState state{};
        batches[storage == &remote_ ? 1 : 0] = Drain(*feed, client, &state);
        EXPECT_EQ(state, choice == OnBadSample::kFail ? FeedState::kFailed : FeedState::kEnded);
        const auto bad = feed->Snapshot().last_bad_samples;
        ASSERT_EQ(bad.size(), ids.size());
        for (const auto& sample : bad) {
          EXPECT_THAT(sample.reason, HasSubstr(fault.reason));
          EXPECT_THAT(sample.reason, HasSubstr("memory:/" + ImagePath(sample.sample_id)));
        }
      }
      EXPECT_EQ(batches[0], batches[1]);
      EXPECT_EQ(batches[1].size(), choice == OnBadSample::kFail ? 1U : 3U);
    }
  }
}

TEST_F(FeedRemoteTest, ABadRowIsSkippedThoughReadStraightIntoTheBatch) {
  const auto dataset = Rows(remote_);
  remote_.Cut("rows.npy", 128 + 50 * kRowBytes);
  const auto feed = Make(RowSpec(40, OnBadSample::kSkip), dataset);
  AttachedClient client(*feed, Sampler::Start{});
  std::vector<uint32_t> sizes;
  while (const auto batch = client.Next()) {
    sizes.push_back(batch->samples);
    client.Release(*batch, *feed);
  }
  EXPECT_EQ(sizes, (std::vector<uint32_t>{40, 10, 0}));
  EXPECT_EQ(feed->Snapshot().bad_samples, 50U);
}

// Nothing writes to a batch once its feed is at rest, and then nothing of the feed is left.
TEST_F(FeedRemoteTest, AStopWaitsForReadsThatHang) {
  for (const bool images : {true, false}) {
    SCOPED_TRACE(images);
    const auto dataset = images ? Images(remote_) : Rows(remote_);
    for (uint64_t id = 0; id < kSamples; ++id) remote_.Hang(ImagePath(id));
    remote_.Hang("rows.npy");
    const uint64_t before = readers_.durations().read.total();
    const auto feed = images ? Make(ImageSpec(100), dataset) : Make(RowSpec(100), dataset);
    AttachedClient client(*feed, Sampler::Start{});
    remote_.AwaitHung(readers_.threads());
    const auto at_rest = std::make_shared<std::promise<void>>();
    std::future<void> rests = at_rest->get_future();
    feed->Stop([at_rest] { at_rest->set_value(); });
    EXPECT_EQ(rests.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
    remote_.Resume();
    rests.wait();
    WaitFor([&] { return readers_.busy() == 0 && workers_->busy() == 0; });
    WaitFor([&] { return feed.use_count() == 2; });  // the fixture's and this one
    EXPECT_EQ(readers_.durations().read.total() - before, readers_.threads()) << "nobody wants the others";
    EXPECT_EQ(client.ready(), 0U);
  }
}

// While the one worker is busy, readers fetch two sections of each piece and no more.
TEST_F(FeedRemoteTest, SamplesInMemoryAreBounded) {
  std::latch gate(1);
  std::latch busy(1);
  const auto hold = [&](uint64_t id) {
    if (id != 0) return;
    busy.count_down();
    gate.wait();
  };
  FeedSpec one = Spec(1, 1);
  one.order = Order::kSequential;
  const auto other = Make(one, std::make_shared<NumberDataset>(1, std::set<uint64_t>{}, hold));
  AttachedClient holder(*other, Sampler::Start{});
  busy.wait();
  const auto feed = Make(ImageSpec(100), Images(remote_));
  AttachedClient client(*feed, Sampler::Start{});
  WaitFor([&] { return readers_.durations().read.total() >= 64 && readers_.busy() == 0; });
  EXPECT_EQ(readers_.durations().read.total(), 64U);
  gate.count_down();
  EXPECT_EQ(Drain(*feed, client), Run(ImageSpec(100), Images(local_)));
  EXPECT_EQ(Drain(*other, holder).size(), 1U);
}

// The time and the spans of a read are the reader's, once a sample; decoding is the workers'.
TEST_F(FeedRemoteTest, ReadsAndDecodesAreCountedWhereTheyAreDone) {
  const auto feed = Make(ImageSpec(50), Images(remote_));
  PageClient client(*feed);
  auto recording = std::move(tracer_.Start(kOwner)).value();
  ASSERT_OK(feed->Attach(client.From(Sampler::Start{})));
  EXPECT_EQ(Drain(*feed, client).size(), 2U);
  EXPECT_EQ(readers_.durations().read.total(), kSamples);
  EXPECT_EQ(readers_.durations().decode.total(), 0U);
  EXPECT_EQ(workers_->durations().read.total(), 0U);
  EXPECT_EQ(workers_->durations().decode.total(), kSamples);
  const auto snapshot = feed->Snapshot();
  EXPECT_EQ(snapshot.read_ns, readers_.durations().read.sum_ns);
  EXPECT_EQ(snapshot.decode_ns, workers_->durations().decode.sum_ns);
  std::map<SpanKind, std::set<uint32_t>> threads;
  for (const TraceSpan& span : recording.Take()) threads[span.kind].insert(span.thread);
  EXPECT_FALSE(threads[SpanKind::kRead].empty());
  EXPECT_EQ(threads[SpanKind::kDecode].size(), 1U);
  EXPECT_FALSE(threads[SpanKind::kRead].contains(*threads[SpanKind::kDecode].begin()));
}

}  // namespace
}  // namespace pinfeed
