// SPDX-License-Identifier: Apache-2.0
// The arena of a broadcast group whose members may use several GPUs. In: filled pieces of batches. Out: the
// same bytes on each of those GPUs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "server/memory/arena.h"
#include "server/memory/gpu/cuda_arena.h"

namespace pinfeed {

// Purpose: holds each slot of the group on every GPU. Pieces are the stripes. In turns, one GPU fetches a
// piece from the host over its own link, and the others copy it from that GPU. A batch thus crosses the host
// links once, rather than once per GPU. Where GPUs cannot read each other's memory, each fetches everything.
// Owns: a part for each GPU, shared with the deliveries in flight. The first part's staging memory serves the
// whole group.
// Threads: as Arena; PartOn and ReleasePart from any thread. Parts are created and freed without the lock, so
// a request for a part waits only for that part. Errors: as Arena. A failed part fails the delivery once.
// Invariants:
// 1. Parts are added only before the first delivery, which happens when the group is complete.
// 2. A part is freed with its last client unless it must be kept.
class StripedArena final : public Arena {
 public:
  // Creates a part on a GPU, with or without staging memory.
  using MakePart =
      std::function<Result<std::unique_ptr<CudaArena>>(const std::string& gpu_uuid, Staging staging)>;
  static Result<std::unique_ptr<StripedArena>> Create(const std::string& gpu_uuid, MakePart make_part);

  Backend backend() const override { return first_->backend(); }
  uint32_t piece_samples() const override { return first_->piece_samples(); }
  bool Take(Piece* piece) override { return first_->Take(piece); }
  void Return(const Piece& piece) override { first_->Return(piece); }
  std::byte* FillAddress(const Piece& piece, size_t tensor) override {
    return first_->FillAddress(piece, tensor);
  }
  void Deliver(const Piece& piece, const SlotRange& range, Done done) override PF_EXCLUDES(mutex_);
  void SetWaiting(const std::shared_ptr<ReleaseReader>& reader, bool waiting) override {
    first_->SetWaiting(reader, waiting);
  }
  void SetRemainingMappers(std::vector<ClientProcess> clients) override PF_EXCLUDES(mutex_);
  int fd() const override { return first_->fd(); }
  uint64_t mapped_bytes() const override { return first_->mapped_bytes(); }
  // Creates the part for the first client on that GPU. kFailedPrecondition once deliveries have begun.
  Result<const Arena*> PartOn(const std::string& gpu_uuid) override PF_EXCLUDES(mutex_);
  void ReleasePart(const Arena& part, bool keep, std::optional<ClientProcess> remaining_mapper) override
      PF_EXCLUDES(mutex_);

 private:
  using Arenas = std::vector<std::shared_ptr<CudaArena>>;
  class PendingCopies;
  struct Part {
    std::string gpu_uuid;
    std::shared_ptr<CudaArena> arena = nullptr;  // null while it is created
    bool ready = false;                          // peer access to the other parts is set up where possible
    bool linked = true;                          // peer access works with all other parts
    bool keep = false;
    uint32_t clients = 0;
    std::vector<ClientProcess> remaining_mappers = {};
  };
  StripedArena(const std::string& gpu_uuid, std::shared_ptr<CudaArena> first, MakePart make_part);
  Result<const Arena*> AddPart(const std::string& gpu_uuid) PF_EXCLUDES(mutex_);
  Part* FindLocked(const std::string& gpu_uuid) PF_REQUIRES(mutex_);
  Arenas ReadyLocked() const PF_REQUIRES(mutex_);
  Status AlreadyRunningLocked(const std::string& gpu_uuid) const PF_REQUIRES(mutex_);

  const std::shared_ptr<CudaArena> first_;
  const MakePart make_part_;
  Mutex mutex_;
  CondVar changed_;  // a part became ready, or its creation failed
  std::vector<Part> parts_ PF_GUARDED_BY(mutex_);
  bool delivering_ PF_GUARDED_BY(mutex_) = false;
  size_t next_stripe_ PF_GUARDED_BY(mutex_) = 0;  // the part that fetches the next piece from the host
};

}  // namespace pinfeed
