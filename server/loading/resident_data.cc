// SPDX-License-Identifier: Apache-2.0
#include "server/loading/resident_data.h"

#include <algorithm>

#include "common/base/byte_size.h"
#include "common/base/log.h"
#include "common/base/quote.h"

namespace pinfeed {

ResidentData::ResidentData(Parts parts)
    : share_(std::make_shared<FeedShare>(parts.owner)),
      parts_(std::move(parts)),
      filling_{*parts_.arena, parts_.sampler, parts_.plan.load.on_bad_sample,
               FeedRecorder(nullptr, parts_.owner, 0), share_.share()} {}

ResidentData::~ResidentData() {
  PF_CHECK(AtRest(), "samples are loaded or given up before their memory is freed");
  if (!remaining_mappers_.empty()) parts_.arena->SetRemainingMappers(std::move(remaining_mappers_));
}

void ResidentData::Begin() {
  {
    const MutexLock lock(mutex_);
    PF_CHECK(phase_ == Phase::kNew, "samples are loaded once");
    phase_ = Phase::kLoading;
    fill_ = std::make_shared<BatchFill>(filling_, *this, 0, parts_.sampler.Plan(0, 0));
  }
  OnPieceMemory();
}

void ResidentData::Await(Waiter& waiter, std::shared_ptr<PieceRequest> request) {
  if (!loaded()) {
    Status error;
    {
      const MutexLock lock(mutex_);
      const bool over = phase_ == Phase::kLoaded || phase_ == Phase::kFailed;
      // Cancel was either before this lock, and Wanted is false, or will find the request in waiting_.
      if (!over && request->Wanted(request->begin())) {
        waiting_.emplace_back(&waiter, std::move(request));
        return;
      }
      error = over ? error_ : Status(Code::kCancelled, "the feed was stopped");
    }
    if (!error.ok()) {
      request->Complete(std::move(error));
      return;
    }
  }
  waiter.OnLoaded(std::move(request));
}

void ResidentData::Cancel(const Waiter& waiter) {
  Waiting cancelled;
  {
    const MutexLock lock(mutex_);
    const auto rest = std::stable_partition(waiting_.begin(), waiting_.end(),
                                            [&](const auto& entry) { return entry.first != &waiter; });
    cancelled.assign(std::make_move_iterator(rest), std::make_move_iterator(waiting_.end()));
    waiting_.erase(rest, waiting_.end());
  }
  for (const auto& [of, request] : cancelled) request->Complete(OkStatus());
}

bool ResidentData::AtRest() const {
  const MutexLock lock(mutex_);
  return phase_ != Phase::kLoading;
}

bool ResidentData::failed() const {
  const MutexLock lock(mutex_);
  return phase_ == Phase::kFailed || phase_ == Phase::kUndelivered;
}

Status ResidentData::WhyBad(uint32_t sample) const {
  if (const auto found = bad_.find(sample); found != bad_.end()) return found->second;
  if (sample >= more_bad_.size() || !more_bad_[sample]) return OkStatus();
  return DataLoss(parts_.dataset->Describe(sample) +
                  " could not be loaded; the reasons are known of the first " + std::to_string(bad_.size()) +
                  " bad samples only");
}

void ResidentData::AddRemainingMapper(ClientProcess process) {
  const MutexLock lock(mutex_);
  pinfeed::AddRemainingMapper(std::move(process), remaining_mappers_);
}

void ResidentData::OnPieceMemory() {
  std::vector<std::shared_ptr<PieceRequest>> requests;
  {
    const MutexLock lock(mutex_);
    while (fill_ != nullptr && !fill_->all_requested()) {
      std::shared_ptr<PieceRequest> request = fill_->NextRequest();
      if (request == nullptr) break;
      requests.push_back(std::move(request));
    }
  }
  for (std::shared_ptr<PieceRequest>& request : requests) parts_.loader->Produce(std::move(request));
}

void ResidentData::OnFilled(uint32_t /*slot*/, FillResult result) {
  for (BadSampleNote& bad : result.bad) bad_.emplace(bad.sample_id, Status(bad.code, std::move(bad.reason)));
  more_bad_ = std::move(result.more_bad);  // the batch has the dataset's order
  bad_samples_ = result.bad_samples;
  const MutexLock lock(mutex_);
  error_ = std::move(result.status);
}

// A failed delivery is a failure of the GPU, at which the daemon ends. Requests then wait until their feeds
// are stopped, and the clients get these batches from the next daemon.
void ResidentData::OnDelivered(uint32_t /*slot*/, const Status& status) {
  Waiting waiting;
  Status error;
  if (status.ok()) parts_.arena->EndFilling();
  {
    const MutexLock lock(mutex_);
    const bool stopped = filling_.stopped.load(std::memory_order_relaxed);
    phase_ = !status.ok() || stopped ? Phase::kUndelivered : error_.ok() ? Phase::kLoaded : Phase::kFailed;
    fill_ = nullptr;
    if (phase_ != Phase::kUndelivered) waiting.swap(waiting_);
    error = error_;
    if (phase_ == Phase::kLoaded) loaded_.store(true, std::memory_order_release);
  }
  const std::string what = ByteSize(parts_.arena->bytes()) + " of " + QuotePath(parts_.dataset->info().path);
  if (loaded())
    spdlog::info("{} are resident on GPU {}, {} bad samples", what, parts_.gpu_uuid, bad_samples_);
  else
    spdlog::warn(
        "{} are not resident on GPU {}: {}", what, parts_.gpu_uuid,
        error.ok() ? status.ok() ? "they are not wanted any more" : status.ToString() : error.ToString());
  for (auto& [waiter, request] : waiting) {
    if (error.ok())
      waiter->OnLoaded(std::move(request));
    else
      request->Complete(error);
  }
}

}  // namespace pinfeed
