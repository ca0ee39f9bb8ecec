// SPDX-License-Identifier: Apache-2.0
// Batches of what client processes submit.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "common/spec/feed_spec.h"
#include "server/loading/batch_producer.h"
#include "server/loading/batcher_queue.h"
#include "server/loading/loading_time.h"
#include "server/loading/sample_loader.h"
#include "server/loading/worker_pool.h"

namespace pinfeed {

// The input of a request as the one field of a dataset, whose samples cannot be read: they come from clients.
std::unique_ptr<const Dataset> MakeRequestDataset(const FeedSpec& spec);

// Purpose: decodes and transforms requests into their batch. Its order is that of arrival, so it is exempt
// from I4. A batch has as many samples as it has good requests. Owns: the loader; the queue together with the
// connections. Borrows: the workers, which outlive it. Precondition: the loader is of MakeRequestDataset; no
// sample of the spec is bad for the feed. Threads: any. Errors: a request that cannot be loaded is answered
// with the reason and left out; memory of the slot that the host lacks completes the piece with an error.
class RequestBatchProducer final : public BatchProducer {
 public:
  RequestBatchProducer(const BatcherSpec& spec, std::unique_ptr<const SampleLoader> loader,
                       WorkerPool& workers, BatcherQueue::Now now = BatcherQueue::Clock::now);

  void Announce(const PieceRequest& piece) override { queue_->Announce(piece); }
  void Produce(std::shared_ptr<PieceRequest> piece) override { queue_->Produce(std::move(piece)); }
  void OnLent(uint64_t epoch, uint64_t batch_index) override { queue_->OnLent({epoch, batch_index}); }
  void Drain() override { queue_->Drain(); }
  void Cancel() override { queue_->Cancel(); }
  ProducerTimes times() const override;
  const DatasetInfo& dataset() const override { return loader_->dataset().info(); }
  std::string Describe(uint64_t sample) const override { return loader_->dataset().Describe(sample); }
  const std::optional<DeferredPixelOps>& deferred_pixel_ops() const override { return loader_->tail(); }
  std::shared_ptr<BatcherQueue> requests() const override { return queue_; }

 private:
  class Task;
  // Loads [begin, end) of the load's requests.
  Status LoadSamples(const BatcherQueue::Load& load, uint32_t begin, uint32_t end, SampleScratch& scratch);
  // Fills the request's place. An error says why its input cannot be used.
  Status LoadSample(const BatcherQueue::Request& request, const SamplePlaces& places, SampleScratch& scratch,
                    SampleTimes& times) const;

  const std::unique_ptr<const SampleLoader> loader_;
  WorkerPool& workers_;
  std::atomic<uint64_t> decode_ns_{0};
  LoadingTime loading_;
  const std::shared_ptr<BatcherQueue> queue_;
};

}  // namespace pinfeed
