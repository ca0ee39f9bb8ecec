// SPDX-License-Identifier: Apache-2.0
// Resident samples, over memory of the host.
#pragma once

#include <unistd.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "server/loading/native_batch_producer.h"
#include "server/loading/resident_data.h"
#include "server/memory/host_arena.h"
#include "tests/support/testing.h"
#include "tests/unit/feed/number_dataset.h"

namespace pinfeed {

// Purpose: takes requests and leaves them to the test.
class HeldLoader final : public BatchProducer {
 public:
  void Produce(std::shared_ptr<PieceRequest> request) override { held.push_back(std::move(request)); }
  ProducerTimes times() const override { return {}; }
  const DatasetInfo& dataset() const override { return info_; }
  std::string Describe(uint64_t sample) const override { return std::to_string(sample); }
  const std::optional<DeferredPixelOps>& deferred_pixel_ops() const override { return none_; }
  std::vector<std::shared_ptr<PieceRequest>> held;

 private:
  const DatasetInfo info_{};
  const std::optional<DeferredPixelOps> none_;
};

class ResidentTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kSamples = 40;
  static constexpr char kGpu[] = "GPU-1";

  ResidentTest() {
    (void)spdlog::default_logger();  // made here: the thread sanitizer does not see how that library
                                     // synchronises
    workers_.Start();
  }
  ~ResidentTest() override { workers_.Stop(); }

  // `held`: gets a loader that leaves its requests to the test; null: workers load.
  std::shared_ptr<ResidentData> MakeData(const std::shared_ptr<const Dataset>& dataset,
                                         HeldLoader** held = nullptr, const char* gpu = kGpu,
                                         uid_t owner = ::geteuid()) {
    FeedSpec spec;
    spec.batch_size = 8;
    ResidentPlan plan = PlanResident(spec, *dataset).value();
    auto loader = SampleLoader::Create(dataset, plan.load).value();
    const BatchLayout layout = BatchLayout::Create(loader->outputs(), plan.load.batch_size).value();
    Sampler sampler = Sampler::Create(plan.load, plan.load.batch_size).value();
    std::unique_ptr<BatchProducer> producer;
    if (held != nullptr) {
      auto own = std::make_unique<HeldLoader>();
      *held = own.get();
      producer = std::move(own);
    } else {
      producer = std::make_unique<NativeBatchProducer>(std::move(loader), sampler, plan.load, layout,
                                                       workers_, readers_);
    }
    std::unique_ptr<Arena> arena = HostArena::Create(layout, 3, false, pool_).value();
    return std::make_shared<ResidentData>(ResidentData::Parts{dataset, std::move(plan), gpu, std::move(arena),
                                                              std::move(producer), sampler, owner});
  }
  static std::shared_ptr<const Dataset> Numbers(std::set<uint64_t> bad = {}) {
    return std::make_shared<NumberDataset>(kSamples, std::move(bad));
  }

  MemoryBudget pool_{uint64_t{64} << 20};
  WorkerPool workers_{3};
  WorkerPool readers_{1, UINT32_MAX, PoolKind::kReaders};
};

}  // namespace pinfeed
