// SPDX-License-Identifier: Apache-2.0
#include "server/device/striped_arena.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/log.h"
#include "common/quote.h"

namespace pinfeed {
namespace {

// Stripes begin at whole pages: copies of odd lengths and places are slower.
constexpr uint64_t kStripeAlignment = 4096;

}  // namespace

// Purpose: the copies of one batch, which end one by one on the copy threads. Invariant: `done` is called
// once, with the last of them, the first error of any and the time of all together.
class StripedArena::Delivery {
 public:
  Delivery(size_t copies, Done done) : done_(std::move(done)), left_(copies) {}

  void Finish(const Status& status, const CopyTime& time, size_t copies = 1) PF_EXCLUDES(mutex_) {
    Status first;
    CopyTime all;
    {
      const MutexLock lock(mutex_);
      if (first_.ok()) first_ = status;
      if (time_.end_ns == 0 || (time.end_ns != 0 && time.begin_ns < time_.begin_ns))
        time_.begin_ns = time.begin_ns;
      time_.end_ns = std::max(time_.end_ns, time.end_ns);
      left_ -= copies;
      if (left_ > 0) return;
      first = first_;
      all = time_;
    }
    done_(first, all);
  }

 private:
  const Done done_;
  Mutex mutex_;
  size_t left_ PF_GUARDED_BY(mutex_);
  Status first_ PF_GUARDED_BY(mutex_);
  CopyTime time_ PF_GUARDED_BY(mutex_);
};

StripedArena::StripedArena(std::unique_ptr<CudaArena> first, MakePart make_part)
    : Arena(first->id(), first->slot_count(), first->slot_stride()),
      first_(*first),
      make_part_(std::move(make_part)) {
  parts_.push_back(std::move(first));
}

Result<std::unique_ptr<StripedArena>> StripedArena::Create(const std::string& gpu_uuid, MakePart make_part) {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaArena> first, make_part(gpu_uuid, Staging::kPinned));
  return std::unique_ptr<StripedArena>(new StripedArena(std::move(first), std::move(make_part)));
}

Result<const Arena*> StripedArena::At(const std::string& gpu_uuid) {
  const MutexLock lock(mutex_);
  for (const auto& part : parts_) {
    if (part->device().uuid() == gpu_uuid) return part.get();
  }
  if (!settled_) return AddPartLocked(gpu_uuid);
  std::string gpus;
  for (const auto& part : parts_) gpus += (gpus.empty() ? "" : ", ") + part->device().uuid();
  return FailedPrecondition("gpu_uuid: the group runs already, on " + gpus +
                            "; who joins it late must be on one of them, not on " + QuotePath(gpu_uuid));
}

Result<const Arena*> StripedArena::AddPartLocked(const std::string& gpu_uuid) {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaArena> added, make_part_(gpu_uuid, Staging::kNone));
  for (const auto& part : parts_) {
    for (const auto& [memory, reader] : {std::pair{part.get(), added.get()}, {added.get(), part.get()}}) {
      const Status allowed = memory->AllowReads(reader->device());
      if (allowed.ok() || !striped_) continue;
      striped_ = false;
      spdlog::warn(
          "GPU {} cannot read the memory of GPU {}, so each GPU of the group fetches whole batches from "
          "the host: {}",
          reader->device().uuid(), memory->device().uuid(), allowed.message());
    }
  }
  parts_.push_back(std::move(added));
  return parts_.back().get();
}

void StripedArena::Deliver(uint32_t slot, uint64_t bytes, Done done) {
  std::vector<CudaArena*> parts;
  bool striped = false;
  {
    const MutexLock lock(mutex_);
    settled_ = true;
    for (const auto& part : parts_) parts.push_back(part.get());
    striped = striped_;
  }
  if (parts.size() == 1) return first_.Deliver(slot, bytes, std::move(done));
  const std::byte* const from = first_.FillAddress(slot);
  if (!striped) {
    const auto delivery = std::make_shared<Delivery>(parts.size(), std::move(done));
    for (CudaArena* const part : parts)
      part->Fetch(slot, {0, bytes}, from,
                  [delivery](const Status& status, const CopyTime& time) { delivery->Finish(status, time); });
    return;
  }
  const size_t count = parts.size();
  const auto delivery = std::make_shared<Delivery>(count * count, std::move(done));
  const uint64_t stripe =
      ((bytes + count - 1) / count + kStripeAlignment - 1) / kStripeAlignment * kStripeAlignment;
  for (size_t k = 0; k < count; ++k) {
    const uint64_t offset = std::min(bytes, k * stripe);
    const CudaArena::Range range{offset, std::min(bytes - offset, stripe)};
    if (range.bytes == 0) {
      delivery->Finish(OkStatus(), {}, count);
      continue;
    }
    parts[k]->Fetch(
        slot, range, from, [delivery, parts, k, slot, range](const Status& status, const CopyTime& time) {
          // The others fetch what is complete here.
          for (size_t j = 0; status.ok() && j < parts.size(); ++j) {
            if (j == k) continue;
            parts[j]->FetchFrom(
                *parts[k], slot, range,
                [delivery](const Status& fetched, const CopyTime& when) { delivery->Finish(fetched, when); });
          }
          delivery->Finish(status, time, status.ok() ? 1 : parts.size());
        });
  }
}

void StripedArena::LeaveTo(std::vector<ClientProcess> clients) {
  const MutexLock lock(mutex_);
  for (const auto& part : parts_) part->LeaveTo(clients);
}

}  // namespace pinfeed
