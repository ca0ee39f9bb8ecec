// SPDX-License-Identifier: Apache-2.0
// Batches from processes of the feed's user.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>

#include "common/spec/feed_spec.h"
#include "common/wire/shared_page.h"
#include "server/loading/batch_producer.h"
#include "server/loading/producer_group.h"
#include "server/loading/worker_pool.h"

namespace pinfeed {

// The dataset of a feed that processes fill, as clients and operators see it.
DatasetInfo InfoOf(const ProducedDataset& dataset);
// The tensors of its batches: the dataset's fields, then the samples' ids (kSampleIdTensor).
std::vector<TensorSpec> TensorsOf(const ProducedDataset& dataset);

// Purpose: prepares the memory of each batch and writes the ids of its samples; a group of processes does the
// rest. A process can write to the whole arena, so it must be an exclusive feed's, on the host. Borrows: the
// workers, which outlive it: they allocate memory on each slot's first use. Precondition: the spec has a
// produced dataset. Threads: any. Errors: memory that
// the host lacks completes the request with an error; else those of the group.
class ProcessBatchProducer final : public BatchProducer {
 public:
  ProcessBatchProducer(uint64_t feed, const FeedSpec& spec, Sampler sampler, WorkerPool& workers);

  void Produce(std::shared_ptr<PieceRequest> request) override;
  void Cancel() override { group_->Cancel(); }
  ProducerTimes times() const override;
  const DatasetInfo& dataset() const override { return info_; }
  std::string Describe(uint64_t sample) const override { return "sample " + std::to_string(sample); }
  const std::optional<DeferredPixelOps>& deferred_pixel_ops() const override { return no_pixel_ops_; }
  std::shared_ptr<ProducerGroup> processes() const override { return group_; }

 private:
  class PrepareTask;
  Status Prepare(const PieceRequest& request);

  const DatasetInfo info_;
  const size_t id_tensor_;
  const uint32_t batch_size_;
  const Sampler sampler_;
  WorkerPool& workers_;
  const std::optional<DeferredPixelOps> no_pixel_ops_;
  const std::shared_ptr<ProducerGroup> group_;
  std::array<std::atomic<bool>, kMaxSlots> prepared_{};  // slots that need no worker any more
};

}  // namespace pinfeed
