// SPDX-License-Identifier: Apache-2.0
// The arena of a broadcast group whose members may be on several GPUs. In: filled pinned slots. Out: the same
// slots, complete on every one of those GPUs.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/sync.h"
#include "server/device/cuda_arena.h"
#include "server/memory/arena.h"

namespace pinfeed {

// Purpose: one slot on each GPU for each slot of the group. Each GPU fetches its stripe of a batch over its
// own link from the host, and the other stripes from its peers over theirs, so that a batch crosses every
// link to the host once in all, not once a GPU. Where GPUs cannot read each other's memory, each fetches
// everything. Copies only. Owns: a part for each GPU; the first one's pinned slots are the group's. Threads:
// as Arena; At from any. Errors: as Arena; a part that fails fails the delivery, once. Invariant: the parts
// are settled with the first delivery, which comes when the group is complete.
class StripedArena final : public Arena {
 public:
  // A part on a GPU, with pinned slots or without.
  using MakePart =
      std::function<Result<std::unique_ptr<CudaArena>>(const std::string& gpu_uuid, Staging staging)>;
  static Result<std::unique_ptr<StripedArena>> Create(const std::string& gpu_uuid, MakePart make_part);

  Backend backend() const override { return first_.backend(); }
  std::byte* FillAddress(uint32_t slot) override { return first_.FillAddress(slot); }
  Status Prepare(uint32_t slot) override { return first_.Prepare(slot); }
  void Deliver(uint32_t slot, uint64_t bytes, Done done) override PF_EXCLUDES(mutex_);
  void SetWaiting(const std::shared_ptr<ReleaseReader>& reader, bool waiting) override {
    first_.SetWaiting(reader, waiting);
  }
  void LeaveTo(std::vector<ClientProcess> clients) override PF_EXCLUDES(mutex_);
  int fd() const override { return first_.fd(); }
  uint64_t mapped_bytes() const override { return first_.mapped_bytes(); }
  // Makes the part if it is the first for that GPU; kFailedPrecondition once the group runs.
  Result<const Arena*> At(const std::string& gpu_uuid) override PF_EXCLUDES(mutex_);

 private:
  class Delivery;
  StripedArena(std::unique_ptr<CudaArena> first, MakePart make_part);
  Result<const Arena*> AddPartLocked(const std::string& gpu_uuid) PF_REQUIRES(mutex_);

  CudaArena& first_;  // of parts_
  const MakePart make_part_;
  Mutex mutex_;
  std::vector<std::unique_ptr<CudaArena>> parts_ PF_GUARDED_BY(mutex_);  // constant once settled
  bool striped_ PF_GUARDED_BY(mutex_) = true;                            // every GPU can read every other's
  bool settled_ PF_GUARDED_BY(mutex_) = false;
};

}  // namespace pinfeed
