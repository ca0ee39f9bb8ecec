// SPDX-License-Identifier: Apache-2.0
#include "client/src/feed/batch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "client/src/base/client_log.h"

namespace pinfeed {

void Batch::Retain() {
  if (!in_creator_process()) return;
  uint32_t owners = owners_.load(std::memory_order_relaxed);
  do {
    if (owners == 0) {
      ClientLog(PF_LOG_WARNING, "pf_batch_retain: the batch was released already; the call is ignored");
      return;
    }
  } while (!owners_.compare_exchange_weak(owners, owners + 1, std::memory_order_relaxed));
}

void Batch::Release() {
  if (!in_creator_process()) return;
  uint32_t owners = owners_.load(std::memory_order_relaxed);
  do {
    if (owners == 0) {
      ClientLog(PF_LOG_WARNING, "pf_batch_release: the batch was released already; the call is ignored");
      return;
    }
  } while (!owners_.compare_exchange_weak(owners, owners - 1, std::memory_order_acq_rel));
  if (owners != 1) return;
  session_->Release(descriptor_);
  Finish();
}

// Purpose: what a sole owner holds while it returns the slot. Others find the batch released meanwhile.
// Without Keep, the owner has it back afterwards.
class Batch::Claim {
 public:
  Claim(Batch& batch, const char* what) : batch_(batch) {
    uint32_t owners = 1;
    if (batch.owners_.compare_exchange_strong(owners, 0, std::memory_order_acq_rel)) return;
    kept_ = true;
    status_ = owners == 0
                  ? FailedPrecondition(std::string(what) + ": the batch was released already")
                  : FailedPrecondition(std::string(what) + ": the batch has " + std::to_string(owners) +
                                       " owners; release it as often as it was retained first");
  }
  ~Claim() {
    if (!kept_) batch_.owners_.store(1, std::memory_order_release);
  }
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  const Status& status() const { return status_; }
  void Keep() { kept_ = true; }

 private:
  Batch& batch_;
  bool kept_ = false;
  Status status_;
};

Status Batch::ReleaseOn(void* stream) {
  Claim claim(*this, "release a batch on a stream");
  RETURN_IF_ERROR(claim.status());
  RETURN_IF_ERROR(session_->ReleaseOn(descriptor_, stream));
  claim.Keep();
  Finish();
  return OkStatus();
}

Status Batch::GiveBack() {
  Claim claim(*this, "give a batch back");
  RETURN_IF_ERROR(claim.status());
  RETURN_IF_ERROR(session_->GiveBack(descriptor_));
  claim.Keep();
  Finish();
  return OkStatus();
}

Status Batch::RowOffsets(size_t output, std::span<int64_t> offsets) const {
  const std::vector<OfferedOutput>& outputs = session_->offer().outputs;
  RETURN_IF_ERROR(session_->RowOffsets(descriptor_, outputs[output], offsets));
  const MutexLock lock(rows_mutex_);
  if (max_rows_.empty()) max_rows_.assign(outputs.size(), UINT64_MAX);
  max_rows_[output] = std::min(max_rows_[output], static_cast<uint64_t>(offsets.back()));
  return OkStatus();
}

Status Batch::Write(void* const* outputs, void* stream) {
  Claim claim(*this, "write a batch");
  RETURN_IF_ERROR(claim.status());
  std::vector<uint64_t> max_rows;
  {
    const MutexLock lock(rows_mutex_);
    max_rows = max_rows_;
  }
  RETURN_IF_ERROR(CheckPointers(outputs, max_rows));
  RETURN_IF_ERROR(session_->Write(descriptor_, {outputs, max_rows}, stream));
  claim.Keep();
  Finish();
  return OkStatus();
}

Status Batch::CheckPointers(void* const* outputs, const std::vector<uint64_t>& max_rows) const {
  const FeedOffer& offer = session_->offer();
  for (size_t i = 0; i < offer.outputs.size(); ++i) {
    const bool needs_none = descriptor_.samples == 0 || (!max_rows.empty() && max_rows[i] == 0) ||
                            offer.source().tensors[offer.outputs[i].tensor].sample_bytes == 0;
    if (outputs[i] == nullptr && !needs_none)
      return InvalidArgument("outputs: the pointer for tensor '" + offer.outputs[i].spec.name + "' is NULL");
  }
  return OkStatus();
}

void Batch::Finish() {
  const std::shared_ptr<Session> session = std::move(
      session_);  // moved out: it may be the last owner, and must then be destroyed after our own state
  session_.reset();
  BatchPool::Process().Return(this);
}

BatchPool& BatchPool::Process() {
  static auto* const pool = new BatchPool;  // never destroyed, see the header
  return *pool;
}

// Made at load: a first use could race with a fork.
[[maybe_unused]] const BatchPool& kAtLoad = BatchPool::Process();

BatchPool::BatchPool() {
  const MutexLock lock(mutex_);
  Grow(kMinResting + kMaxSlots);
}

void BatchPool::Grow(size_t batches) {
  const std::unique_ptr<Batch[]>& added = all_.emplace_back(std::make_unique<Batch[]>(batches));
  for (size_t i = 0; i < batches; ++i) {
    added[i].after_ = first_;
    first_ = &added[i];
    if (last_ == nullptr) last_ = first_;
  }
  resting_ += batches;
}

Batch* BatchPool::Take(std::shared_ptr<Session> session, const BatchDescriptor& descriptor) {
  Batch* batch = nullptr;
  {
    const MutexLock lock(mutex_);
    try {
      if (resting_ < kMinResting) Grow(kMaxSlots);
    } catch (const std::bad_alloc&) {
      // One stays, behind which Return puts others. Otherwise the batch, which the daemon counts as taken,
      // would be lost.
      if (resting_ == 1) throw;
    }
    batch = first_;
    first_ = batch->after_;
    --resting_;
  }
  batch->fork_guard_ = ForkGuard();
  batch->session_ = std::move(session);
  batch->descriptor_ = descriptor;
  {
    const MutexLock lock(batch->rows_mutex_);
    batch->max_rows_.clear();
  }
  batch->owners_.store(1, std::memory_order_release);
  return batch;
}

void BatchPool::Return(Batch* batch) {
  const MutexLock lock(mutex_);
  batch->after_ = nullptr;
  last_->after_ = batch;
  last_ = batch;
  ++resting_;
}

}  // namespace pinfeed
