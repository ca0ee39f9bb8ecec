// SPDX-License-Identifier: Apache-2.0
#include "server/memory/gpu/striped_arena.h"

#include <algorithm>
#include <utility>

#include "common/base/join.h"
#include "common/base/log.h"
#include "common/base/quote.h"

namespace pinfeed {

// Purpose: tracks the copies of one piece, one to each part, which complete on several copy threads. Owns a
// share of the parts, which outlive the copies to them. Invariant: `done` is called once, after the last
// copy, with the first error and the time span of all copies.
class StripedArena::PendingCopies {
 public:
  PendingCopies(Done done, Arenas parts)
      : done_(std::move(done)), parts_(std::move(parts)), remaining_(parts_.size()) {}

  const Arenas& parts() const { return parts_; }

  void Finish(const Status& status, const CopyTime& time) PF_EXCLUDES(mutex_) {
    Status first;
    CopyTime all;
    {
      const MutexLock lock(mutex_);
      if (first_.ok()) first_ = status;
      if (time_.end_ns == 0 || (time.end_ns != 0 && time.begin_ns < time_.begin_ns))
        time_.begin_ns = time.begin_ns;
      time_.end_ns = std::max(time_.end_ns, time.end_ns);
      if (--remaining_ > 0) return;
      first = first_;
      all = time_;
    }
    done_(first, all);
  }

 private:
  const Done done_;  // owns the feed, so it is destroyed after the parts
  const Arenas parts_;
  Mutex mutex_;
  size_t remaining_ PF_GUARDED_BY(mutex_);
  Status first_ PF_GUARDED_BY(mutex_);
  CopyTime time_ PF_GUARDED_BY(mutex_);
};

StripedArena::StripedArena(const std::string& gpu_uuid, std::shared_ptr<CudaArena> first, MakePart make_part)
    : Arena(first->id(), first->slot_count(), first->layout()),
      first_(std::move(first)),
      make_part_(std::move(make_part)) {
  parts_.push_back({.gpu_uuid = gpu_uuid, .arena = first_, .ready = true, .keep = true});
}

Result<std::unique_ptr<StripedArena>> StripedArena::Create(const std::string& gpu_uuid, MakePart make_part) {
  ASSIGN_OR_RETURN(std::unique_ptr<CudaArena> first, make_part(gpu_uuid, Staging::kPinned));
  return std::unique_ptr<StripedArena>(new StripedArena(gpu_uuid, std::move(first), std::move(make_part)));
}

Result<const Arena*> StripedArena::PartOn(const std::string& gpu_uuid) {
  {
    const MutexLock lock(mutex_);
    Part* part = FindLocked(gpu_uuid);
    while (part != nullptr && !part->ready) {  // another client's thread is creating it
      changed_.Wait(mutex_);
      part = FindLocked(gpu_uuid);
    }
    if (part != nullptr) {
      ++part->clients;
      return part->arena.get();
    }
    if (delivering_) return AlreadyRunningLocked(gpu_uuid);
    parts_.push_back({.gpu_uuid = gpu_uuid});
  }
  return AddPart(gpu_uuid);
}

// The part's entry in parts_ exists already.
Result<const Arena*> StripedArena::AddPart(const std::string& gpu_uuid) {
  Result<std::unique_ptr<CudaArena>> made = make_part_(gpu_uuid, Staging::kNone);
  const Status status = made.status();
  const std::shared_ptr<CudaArena> added = made.ok() ? *std::move(made) : nullptr;
  Arenas others;
  {
    const MutexLock lock(mutex_);
    for (const Part& part : parts_) {
      if (part.arena != nullptr) others.push_back(part.arena);
    }
    FindLocked(gpu_uuid)->arena = added;  // parts created later link with this one
  }
  bool linked = true;
  for (size_t i = 0; added != nullptr && i < others.size(); ++i) {
    for (const auto& [memory, reader] : {std::pair{others[i], added}, {added, others[i]}}) {
      const Status allowed = memory->AllowReads(reader->device());
      if (allowed.ok() || !linked) continue;
      linked = false;
      spdlog::warn(
          "GPU {} cannot read the memory of GPU {}, so each GPU of the group copies whole batches from "
          "the host: {}",
          reader->device().uuid(), memory->device().uuid(), allowed.message());
    }
  }
  const MutexLock lock(mutex_);
  changed_.NotifyAll();
  Part& part = *FindLocked(gpu_uuid);
  part.linked = linked;
  part.ready = true;
  part.clients = 1;
  if (added != nullptr && !delivering_) return added.get();
  std::erase_if(parts_, [&](const Part& one) { return one.gpu_uuid == gpu_uuid; });
  return added == nullptr ? status : AlreadyRunningLocked(gpu_uuid);
}

void StripedArena::ReleasePart(const Arena& part, bool keep, std::optional<ClientProcess> remaining_mapper) {
  std::shared_ptr<CudaArena> gone;  // freed without the lock, here or after the last delivery
  const MutexLock lock(mutex_);
  const auto found = std::ranges::find_if(parts_, [&](const Part& one) { return one.arena.get() == &part; });
  PF_CHECK(found != parts_.end() && found->clients > 0, "a client leaves only a part that PartOn returned");
  found->keep = found->keep || keep;
  if (found->keep) {
    found->remaining_mappers.clear();  // SetRemainingMappers will report all of the group's clients
  } else if (remaining_mapper) {
    found->remaining_mappers.push_back(*std::move(remaining_mapper));
  }
  if (--found->clients > 0 || found->keep) return;
  gone = std::move(found->arena);
  gone->SetRemainingMappers(std::move(found->remaining_mappers));
  parts_.erase(found);
}

StripedArena::Part* StripedArena::FindLocked(const std::string& gpu_uuid) {
  const auto found =
      std::ranges::find_if(parts_, [&](const Part& part) { return part.gpu_uuid == gpu_uuid; });
  return found != parts_.end() ? &*found : nullptr;
}

StripedArena::Arenas StripedArena::ReadyLocked() const {
  Arenas ready;
  for (const Part& part : parts_) {
    if (part.ready) ready.push_back(part.arena);
  }
  return ready;
}

Status StripedArena::AlreadyRunningLocked(const std::string& gpu_uuid) const {
  const std::string gpus =
      JoinTexts(ReadyLocked(), ", ", [](const auto& arena) { return arena->device().uuid(); });
  return FailedPrecondition("gpu_uuid: the group is already running on " + gpus +
                            "; a client that joins now must use one of them, not " + QuotePath(gpu_uuid));
}

void StripedArena::Deliver(const Piece& piece, const SlotRange& range, Done done) {
  Arenas parts;
  bool striped = false;
  size_t stripe = 0;
  {
    const MutexLock lock(mutex_);
    delivering_ = true;
    parts = ReadyLocked();
    striped = std::ranges::all_of(parts_, [](const Part& part) { return !part.ready || part.linked; });
    stripe = next_stripe_++ % parts.size();
  }
  if (parts.size() == 1) return first_->Deliver(piece, range, std::move(done));
  const std::vector<StagedCopy> copies = first_->staging().Copies(piece, range);
  if (copies.empty()) {
    Return(piece);
    return done(OkStatus(), {});
  }
  if (!striped) {
    done = [this, piece, done = std::move(done)](const Status& status, const CopyTime& time) {
      Return(piece);
      done(status, time);
    };
  }
  const auto pending = std::make_shared<PendingCopies>(std::move(done), std::move(parts));
  const auto finish = [pending](const Status& status, const CopyTime& time) {
    pending->Finish(status, time);
  };
  const Arenas& all = pending->parts();
  if (!striped) {
    for (const auto& part : all) part->Fetch(piece.slot, copies, finish);
    return;
  }
  const CudaArena& first = *all[stripe];
  all[stripe]->Fetch(
      piece.slot, copies,
      [this, pending, &first, copies, piece, finish](const Status& status, const CopyTime& time) {
        Return(piece);  // the others do not read it, so it can be filled meanwhile
        // The other parts copy from the completed one.
        for (const auto& part : pending->parts()) {
          if (part.get() == &first) continue;
          if (status.ok()) {
            part->FetchFrom(first, piece.slot, copies, finish);
          } else {
            finish(status, {});
          }
        }
        finish(status, time);
      });
}

void StripedArena::SetRemainingMappers(std::vector<ClientProcess> clients) {
  Arenas parts;
  {
    const MutexLock lock(mutex_);
    parts = ReadyLocked();
  }
  for (const auto& part : parts) part->SetRemainingMappers(clients);
}

}  // namespace pinfeed
