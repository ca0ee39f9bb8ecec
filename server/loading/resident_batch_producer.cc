// SPDX-License-Identifier: Apache-2.0
#include "server/loading/resident_batch_producer.h"

#include <span>
#include <utility>

namespace pinfeed {
namespace {

// What a thread writes before it leaves the rest to a worker: it may be the one that serves all sessions.
constexpr uint64_t kSamplesInARow = 32768;
// As many samples are as much work as a batch is besides its samples: plan it, publish it, ask for the next.
constexpr uint64_t kSamplesOfABatch = 512;

}  // namespace

void ResidentBatchProducer::OnLoaded(std::shared_ptr<PieceRequest> request) {
  {
    const MutexLock lock(mutex_);
    ready_.push_back(request);
    // Also within WriteReady: a completed batch may be published and its successor asked for at once.
    if (std::exchange(writing_, true)) return;
  }
  WriteReady(std::move(request));
}

void ResidentBatchProducer::WriteReady(std::shared_ptr<PieceRequest> request) {
  uint64_t written = 0;
  while (true) {
    {
      const MutexLock lock(mutex_);
      if (ready_.empty()) {
        writing_ = false;
        return;
      }
      request = ready_.front();
      if (written < kSamplesInARow) ready_.pop_front();
    }
    if (written >= kSamplesInARow)  // the task owns a request, which keeps the feed alive
      return workers_.Submit(std::make_shared<FunctionTask>(
          request->share(), 1, [this, request](uint32_t, uint32_t, SampleScratch&) { WriteReady(request); }));
    written += kSamplesOfABatch + request->end() - request->begin();
    request->Complete(Write(*request));
  }
}

Status ResidentBatchProducer::Write(const PieceRequest& request) const {
  RETURN_IF_ERROR(request.Prepare(request.begin(), request.end()));
  const std::span indexes(reinterpret_cast<uint32_t*>(request.Address(0)), request.end() - request.begin());
  sampler_.SamplesOf(request.plan()).CopyTo(request.begin(), indexes);
  if (data_->bad_samples() == 0) return OkStatus();
  for (uint32_t i = 0; i < indexes.size() && request.Wanted(request.begin() + i); ++i) {
    Status bad = data_->WhyBad(indexes[i]);
    if (bad.ok()) continue;
    if (on_bad_sample_ == OnBadSample::kZero) indexes[i] |= kZeroIndex;
    request.Bad(request.begin() + i, std::move(bad));
  }
  return OkStatus();
}

}  // namespace pinfeed
