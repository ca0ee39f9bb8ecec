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

template <typename Give>
Status Batch::ReturnBy(const char* what, const Give& give) {
  uint32_t owners = 1;
  if (!owners_.compare_exchange_strong(owners, 0, std::memory_order_acq_rel))
    return FailedPrecondition(std::string(what) + ": the batch " +
                              (owners == 0 ? "was released already"
                                           : "has " + std::to_string(owners) +
                                                 " owners; release it as often as it was retained first"));
  const auto own_again = [](Batch* batch) { batch->owners_.store(1, std::memory_order_release); };
  std::unique_ptr<Batch, decltype(own_again)> unreturned(this, own_again);  // `give` may also throw
  RETURN_IF_ERROR(give());
  (void)unreturned.release();
  Finish();
  return OkStatus();
}

Status Batch::ReleaseOn(void* stream) {
  return ReturnBy("release a batch on a stream", [&] { return session_->ReleaseOn(descriptor_, stream); });
}

Status Batch::GiveBack() {
  return ReturnBy("give a batch back", [&] { return session_->GiveBack(descriptor_); });
}

Status Batch::RowOffsets(size_t output, std::span<int64_t> offsets) const {
  const std::vector<OfferedOutput>& outputs = session_->offer().outputs;
  RETURN_IF_ERROR(session_->RowOffsets(descriptor_, outputs[output], offsets));
  const MutexLock lock(rows_mutex_);
  if (max_rows_.empty()) max_rows_.assign(outputs.size(), UINT64_MAX);
  max_rows_[output] = std::min(max_rows_[output], static_cast<uint64_t>(offsets.back()));
  return OkStatus();
}

Status Batch::Write(std::span<void* const> outputs, void* stream) {
  return ReturnBy("write a batch", [&]() -> Status {
    std::vector<uint64_t> max_rows;
    {
      const MutexLock lock(rows_mutex_);
      max_rows = max_rows_;
    }
    RETURN_IF_ERROR(CheckPointers(outputs, max_rows));
    return session_->Write(descriptor_, {outputs.data(), max_rows}, stream);
  });
}

Status Batch::CheckPointers(std::span<void* const> outputs, const std::vector<uint64_t>& max_rows) const {
  const FeedOffer& offer = session_->offer();
  if (outputs.size() != offer.outputs.size())
    return InvalidArgument("outputs: " + std::to_string(outputs.size()) +
                           " pointers were given, the feed makes " + std::to_string(offer.outputs.size()) +
                           " tensors");
  for (size_t i = 0; i < offer.outputs.size(); ++i) {
    const bool needs_none = descriptor_.samples == 0 || (!max_rows.empty() && max_rows[i] == 0) ||
                            offer.source().tensors[offer.outputs[i].tensor].sample_bytes == 0;
    if (outputs[i] == nullptr && !needs_none)
      return InvalidArgument("outputs: the pointer for tensor '" + offer.outputs[i].spec.name + "' is NULL");
  }
  return OkStatus();
}

void Batch::Finish() {
  // It may be the last owner, and must then be destroyed after our own state.
  const std::shared_ptr<Session> session = std::move(session_);
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
