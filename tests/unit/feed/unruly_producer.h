// SPDX-License-Identifier: Apache-2.0
// A second implementation of BatchProducer for the feed's tests: it has no dataset, and behaves as badly as a
// producer in another process may.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "server/loading/batch_producer.h"
#include "tests/support/testing.h"

namespace pinfeed {

// Purpose: fills requests on two threads, in random order, and completes each of them twice, the second time
// often much later. Owns: its threads. Threads: any; it is destroyed by none of its own.
class UnrulyProducer final : public BatchProducer {
 public:
  struct Source {
    DatasetInfo info;
    Sampler sampler;
    OnBadSample on_bad_sample;
    std::vector<TensorSpec> outputs;
    // Writes tensor `field` of a sample, for each field of `info`; an error says that the sample is bad.
    std::function<Status(uint64_t sample, size_t field, std::span<std::byte> place)> write;
  };
  explicit UnrulyProducer(Source source) : source_(std::move(source)) {
    for (std::thread& thread : threads_) thread = std::thread([this] { Run(); });
  }
  ~UnrulyProducer() override {
    {
      const MutexLock lock(mutex_);
      ending_ = true;
    }
    changed_.NotifyAll();
    for (std::thread& thread : threads_) thread.join();
  }

  void Produce(std::shared_ptr<PieceRequest> request) override {
    {
      const MutexLock lock(mutex_);
      requests_.push_back(std::move(request));
    }
    changed_.NotifyAll();
  }
  void Cancel() override {
    std::vector<std::shared_ptr<PieceRequest>> dropped;
    const MutexLock lock(mutex_);
    cancelled_ = true;
    dropped.swap(completed_);
  }
  ProducerTimes times() const override { return {}; }
  const DatasetInfo& dataset() const override { return source_.info; }
  std::string Describe(uint64_t sample) const override { return "number " + std::to_string(sample); }
  const std::optional<DeferredPixelOps>& deferred_pixel_ops() const override { return none_; }

 private:
  void Run() {
    std::mt19937 random(std::random_device{}());
    while (const std::shared_ptr<PieceRequest> request = Take(random)) {
      Fill(*request);
      EXPECT_TRUE(request->Complete(OkStatus()));
      EXPECT_FALSE(request->Complete(OkStatus())) << "twice at once";
      std::shared_ptr<PieceRequest> earlier;
      {
        const MutexLock lock(mutex_);
        if (cancelled_) continue;  // a request that is kept would keep the feed
        completed_.push_back(request);
        if (completed_.size() < kKept) continue;
        earlier = std::exchange(completed_[random() % kKept], std::move(completed_.back()));
        completed_.pop_back();
      }
      EXPECT_FALSE(earlier->Complete(DataLoss("told again"))) << "twice, and late";
      if (earlier->Wanted(earlier->begin())) earlier->Bad(earlier->begin(), DataLoss("told late"));
    }
  }

  // A random request; null at the end.
  std::shared_ptr<PieceRequest> Take(std::mt19937& random) {
    const MutexLock lock(mutex_);
    while (requests_.empty() && !ending_) changed_.Wait(mutex_);
    if (requests_.empty()) return nullptr;
    std::swap(requests_[random() % requests_.size()], requests_.back());
    std::shared_ptr<PieceRequest> request = std::move(requests_.back());
    requests_.pop_back();
    return request;
  }

  void Fill(const PieceRequest& request) const {
    SamplePlaces places;
    const BatchSamples ids = source_.sampler.SamplesOf(request.plan());
    ASSERT_OK(request.Places(request.begin(), request.end(), places));
    for (uint32_t i = request.begin(); i < request.end() && request.Wanted(i); ++i) {
      const size_t fields = source_.info.fields.size();
      Status status;
      for (size_t f = 0; f < fields && status.ok(); ++f) status = source_.write(ids[i], f, places[f]);
      const bool zeroed = !status.ok() && source_.on_bad_sample == OnBadSample::kZero;
      for (size_t f = 0; f < fields && zeroed; ++f) std::ranges::fill(places[f], std::byte{0});
      for (size_t t = fields; t < places.size(); ++t) WriteAdded(t, ids[i], zeroed, places[t]);
      if (!status.ok()) request.Bad(i, std::move(status));
      places.Next();
    }
  }

  void WriteAdded(size_t tensor, uint64_t id, bool zeroed, std::span<std::byte> place) const {
    if (source_.outputs[tensor].name == "sample_id") {
      std::copy_n(reinterpret_cast<const std::byte*>(&id), sizeof(id), place.data());
    } else {
      ASSERT_EQ(source_.outputs[tensor].name, "valid");
      place[0] = std::byte{zeroed ? uint8_t{0} : uint8_t{1}};
    }
  }

  static constexpr size_t kKept = 4;

  const Source source_;
  const std::optional<DeferredPixelOps> none_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<std::shared_ptr<PieceRequest>> requests_ PF_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<PieceRequest>> completed_ PF_GUARDED_BY(mutex_);
  bool cancelled_ PF_GUARDED_BY(mutex_) = false;
  bool ending_ PF_GUARDED_BY(mutex_) = false;
  std::array<std::thread, 2> threads_;
};

}  // namespace pinfeed
