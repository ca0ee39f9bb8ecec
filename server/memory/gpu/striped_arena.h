// SPDX-License-Identifier: Apache-2.0
// The arena of a broadcast group whose members may be on several GPUs. In: filled pieces of batches. Out: the
// same bytes on every one of those GPUs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/sync.h"
#include "server/memory/arena.h"
#include "server/memory/gpu/cuda_arena.h"

namespace pinfeed {

// Purpose: one slot on each GPU for each slot of the group. Pieces are the stripes: in turns, one GPU fetches
// a piece over its own link from the host, and the others from that one over theirs, so that a batch crosses
// the links to the host once in all, not once a GPU. Where GPUs cannot read each other's memory, each fetches
// everything. Copies only. Owns: a part for each GPU, with the deliveries under way; the first one's staging
// memory is the group's. Threads: as Arena; At and LeaveAt from any. Memory is made and freed without the
// lock: who asks for a part waits for none but that one. Errors: as Arena; a part that fails fails the
// delivery, once. Invariants: 1. no part is added from the first delivery on, which comes when the group is
// complete; 2. a part goes with the last client that asked for it, unless it is to be kept.
class StripedArena final : public Arena {
 public:
  // A part on a GPU, with staging memory or without.
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
  void Deliver(const Piece& piece, const SlotRange& landing, Done done) override PF_EXCLUDES(mutex_);
  void SetWaiting(const std::shared_ptr<ReleaseReader>& reader, bool waiting) override {
    first_->SetWaiting(reader, waiting);
  }
  void LeaveTo(std::vector<ClientProcess> clients) override PF_EXCLUDES(mutex_);
  int fd() const override { return first_->fd(); }
  uint64_t mapped_bytes() const override { return first_->mapped_bytes(); }
  // Makes the part if it is the first for that GPU; kFailedPrecondition once the group runs.
  Result<const Arena*> At(const std::string& gpu_uuid) override PF_EXCLUDES(mutex_);
  void LeaveAt(const Arena& part, bool keep, std::optional<ClientProcess> remaining_mapper) override
      PF_EXCLUDES(mutex_);

 private:
  using Arenas = std::vector<std::shared_ptr<CudaArena>>;
  class Delivery;
  struct Part {
    std::string gpu_uuid;
    std::shared_ptr<CudaArena> arena = nullptr;  // while it is made
    bool ready = false;  // its GPU and those of the others reach each other, if they can
    bool linked = true;  // they can
    bool keep = false;
    uint32_t clients = 0;
    std::vector<ClientProcess> remaining_mappers = {};
  };
  StripedArena(const std::string& gpu_uuid, std::shared_ptr<CudaArena> first, MakePart make_part);
  Result<const Arena*> AddPart(const std::string& gpu_uuid) PF_EXCLUDES(mutex_);
  Part* FindLocked(const std::string& gpu_uuid) PF_REQUIRES(mutex_);
  Arenas ReadyLocked() const PF_REQUIRES(mutex_);
  Status TooLateLocked(const std::string& gpu_uuid) const PF_REQUIRES(mutex_);

  const std::shared_ptr<CudaArena> first_;
  const MakePart make_part_;
  Mutex mutex_;
  CondVar changed_;  // a part is ready, or could not be made
  std::vector<Part> parts_ PF_GUARDED_BY(mutex_);
  bool settled_ PF_GUARDED_BY(mutex_) = false;
  size_t turn_ PF_GUARDED_BY(mutex_) = 0;  // whose part fetches the next piece
};

}  // namespace pinfeed
