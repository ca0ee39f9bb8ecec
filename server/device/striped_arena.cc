// SPDX-License-Identifier: Apache-2.0
#include "server/device/striped_arena.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/log.h"
#include "common/quote.h"

namespace pinfeed {

// Purpose: the copies of one piece, which end one by one on the copy threads. Invariant: `done` is called
// once, with the last of them, the first error of any and the time of all together.
class StripedArena::Delivery {
 public:
  Delivery(size_t copies, Done done) : done_(std::move(done)), left_(copies) {}

  void Finish(const Status& status, const CopyTime& time) PF_EXCLUDES(mutex_) {
    Status first;
    CopyTime all;
    {
      const MutexLock lock(mutex_);
      if (first_.ok()) first_ = status;
      if (time_.end_ns == 0 || (time.end_ns != 0 && time.begin_ns < time_.begin_ns))
        time_.begin_ns = time.begin_ns;
      time_.end_ns = std::max(time_.end_ns, time.end_ns);
      if (--left_ > 0) return;
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
    : Arena(first->id(), first->slot_count(), first->layout()),
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

void StripedArena::Deliver(const Piece& piece, const Landing& landing, Done done) {
  std::vector<CudaArena*> parts;
  bool striped = false;
  size_t turn = 0;
  {
    const MutexLock lock(mutex_);
    settled_ = true;
    for (const auto& part : parts_) parts.push_back(part.get());
    striped = striped_;
    turn = turn_++ % parts.size();
  }
  if (parts.size() == 1) return first_.Deliver(piece, landing, std::move(done));
  const std::vector<StagedCopy> copies = first_.staging().Copies(piece, landing);
  const auto delivery = std::make_shared<Delivery>(
      copies.empty() ? 1 : parts.size(),
      [this, piece, done = std::move(done)](const Status& status, const CopyTime& time) {
        Return(piece);
        done(status, time);
      });
  const auto finish = [delivery](const Status& status, const CopyTime& time) {
    delivery->Finish(status, time);
  };
  if (copies.empty()) return finish(OkStatus(), {});
  if (!striped) {
    for (CudaArena* const part : parts) part->Fetch(piece.slot, copies, finish);
    return;
  }
  parts[turn]->Fetch(piece.slot, copies, [=](const Status& status, const CopyTime& time) {
    // The others fetch what is complete there.
    for (CudaArena* const part : parts) {
      if (part == parts[turn]) continue;
      if (status.ok()) {
        part->FetchFrom(*parts[turn], piece.slot, copies, finish);
      } else {
        finish(status, {});
      }
    }
    finish(status, time);
  });
}

void StripedArena::LeaveTo(std::vector<ClientProcess> clients) {
  const MutexLock lock(mutex_);
  for (const auto& part : parts_) part->LeaveTo(clients);
}

}  // namespace pinfeed
