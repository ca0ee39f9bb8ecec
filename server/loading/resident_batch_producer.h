// SPDX-License-Identifier: Apache-2.0
// Batches of samples that are resident on a GPU: lists of their indexes. Reads nothing.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "common/base/sync.h"
#include "server/loading/batch_producer.h"
#include "server/loading/resident_data.h"
#include "server/loading/worker_pool.h"

namespace pinfeed {

// Purpose: writes the indexes of each batch's samples once the samples are loaded. The thread that asks for a
// batch writes it, since waking another one would cost more; a long run goes on in a worker. Owns: a share of
// the samples. Borrows: the pool, which outlives it. Threads: any. Errors: a sample that could not be loaded
// is reported as bad in each batch that has it.
class ResidentBatchProducer final : public BatchProducer, public ResidentData::Waiter {
 public:
  ResidentBatchProducer(std::shared_ptr<ResidentData> data, ResidentPlan plan, Sampler sampler,
                        OnBadSample on_bad_sample, DatasetInfo info, WorkerPool& workers)
      : data_(std::move(data)),
        plan_(std::move(plan)),
        sampler_(std::move(sampler)),
        on_bad_sample_(on_bad_sample),
        info_(std::move(info)),
        workers_(workers) {}

  void Produce(std::shared_ptr<PieceRequest> request) override { data_->Await(*this, std::move(request)); }
  void Cancel() override { data_->Cancel(*this); }
  bool Busy(const FeedShare& /*share*/, size_t batches) const override { return batches > 0; }
  void OnLoaded(std::shared_ptr<PieceRequest> request) override PF_EXCLUDES(mutex_);

  ProducerTimes times() const override { return data_->times(); }
  const DatasetInfo& dataset() const override { return info_; }
  std::string Describe(uint64_t sample) const override { return data_->parts().dataset->Describe(sample); }
  const std::optional<DeferredPixelOps>& deferred_pixel_ops() const override { return plan_.image; }
  std::shared_ptr<ResidentData> resident() const override { return data_; }
  const ResidentPlan* resident_plan() const override { return &plan_; }

 private:
  // Writes the batches that wait, unless another thread does. `request` keeps the feed alive.
  void WriteReady(std::shared_ptr<PieceRequest> request) PF_EXCLUDES(mutex_);
  Status Write(const PieceRequest& request) const;

  const std::shared_ptr<ResidentData> data_;
  const ResidentPlan plan_;  // the feed's own view of the samples
  const Sampler sampler_;
  const OnBadSample on_bad_sample_;
  const DatasetInfo info_;
  WorkerPool& workers_;
  Mutex mutex_;
  std::deque<std::shared_ptr<PieceRequest>> ready_ PF_GUARDED_BY(mutex_);
  bool writing_ PF_GUARDED_BY(mutex_) = false;  // a thread is in WriteReady, or will be
};

}  // namespace pinfeed
