// SPDX-License-Identifier: Apache-2.0
// A piece that workers load as a whole. In: the piece. Out: its end, with the error of a load if there was
// one.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "common/base/sync.h"
#include "server/loading/batch_producer.h"
#include "server/loading/worker_pool.h"

namespace pinfeed {

// Purpose: loads one piece, and completes it when all of it is loaded. Owns: the request, which keeps the
// feed alive and so its producer. Threads: Load runs on several workers at once. Errors: the latest of Load
// is that of the piece.
class PieceTask : public FillTask {
 public:
  PieceTask(std::shared_ptr<PieceRequest> request, uint32_t samples, uint32_t chunk_samples)
      : FillTask(request->share(), samples, chunk_samples), request_(std::move(request)) {}

  void Run(uint32_t begin, uint32_t end, SampleScratch& scratch) final {
    Status status = Load(begin, end, scratch);
    if (status.ok()) return;
    const MutexLock lock(mutex_);
    status_ = std::move(status);
  }
  void Done() final {
    Status status;
    {
      const MutexLock lock(mutex_);
      status = std::move(status_);
    }
    request_->Complete(std::move(status));
  }

 protected:
  const PieceRequest& request() const { return *request_; }
  // Loads [begin, end) of the task's samples.
  virtual Status Load(uint32_t begin, uint32_t end, SampleScratch& scratch) = 0;

 private:
  const std::shared_ptr<PieceRequest> request_;
  Mutex mutex_;
  Status status_ PF_GUARDED_BY(mutex_);
};

}  // namespace pinfeed
