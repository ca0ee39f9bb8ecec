// SPDX-License-Identifier: Apache-2.0
// Batches from a dataset, by the host's worker threads.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "server/loading/batch_producer.h"
#include "server/loading/sample_loader.h"
#include "server/loading/worker_pool.h"

namespace pinfeed {

// Purpose: loads the samples of a piece on the worker pool, each by one worker. Owns: the loader. Borrows:
// the pool, which outlives it. Threads: any.
class NativeBatchProducer final : public BatchProducer {
 public:
  NativeBatchProducer(std::unique_ptr<const SampleLoader> loader, Sampler sampler, OnBadSample on_bad_sample,
                      const BatchLayout& layout, WorkerPool& workers);

  void Produce(std::shared_ptr<PieceRequest> request) override;
  ProducerTimes times() const override;
  const DatasetInfo& dataset() const override { return loader_->dataset().info(); }
  std::string Describe(uint64_t sample) const override { return loader_->dataset().Describe(sample); }
  const std::optional<DeferredPixelOps>& deferred_pixel_ops() const override { return loader_->tail(); }

 private:
  class Task;
  Status Load(const PieceRequest& request, uint32_t begin, uint32_t end, SampleScratch& scratch);

  const std::unique_ptr<const SampleLoader> loader_;
  const Sampler sampler_;
  const OnBadSample on_bad_sample_;
  WorkerPool& workers_;
  uint32_t chunk_samples_ = 1;  // that a worker loads at once
  std::atomic<uint64_t> read_ns_{0};
  std::atomic<uint64_t> decode_ns_{0};
};

}  // namespace pinfeed
