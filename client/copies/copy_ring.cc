// SPDX-License-Identifier: Apache-2.0
#include "client/copies/copy_ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace pinfeed {

void CopyRing::MemoryTraits::Close(Handle memory) noexcept {
  ::munmap(memory.address, memory.bytes);
}

CopyRing::~CopyRing() {
  const auto scope = device_->Enter();
  const MutexLock lock(mutex_);
  // Fails only in a broken context, in which nothing reads the slots any more.
  for (const Slot* slot : sent_) (void)device_->driver().cuEventSynchronize(slot->sent.get().native);
}

Result<CopyRing::Slab> CopyRing::MakeSlab(uint64_t bytes) const {
  const std::string what = "map " + std::to_string(bytes) + " bytes for copies to GPU " + device_->uuid();
  void* const address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) return ErrnoStatus(what, errno);
  Slab slab;
  slab.memory.reset({address, bytes});
  // A child that shared the pages could make the kernel move the parent's, while the GPU keeps the old ones.
  if (::madvise(address, bytes, MADV_DONTFORK) != 0) return ErrnoStatus(what, errno);
  (void)::madvise(address, bytes, MADV_HUGEPAGE);  // advice: pins faster where the kernel has huge pages
  ASSIGN_OR_RETURN(slab.registration, HostRegistration::Create(device_, address, bytes));
  return slab;
}

Status CopyRing::AddSlots(uint32_t count) {
  ASSIGN_OR_RETURN(Slab slab, MakeSlab(count * kSlotBytes));
  std::vector<std::unique_ptr<Slot>> made;
  for (uint32_t i = 0; i < count; ++i) {
    auto slot = std::make_unique<Slot>();
    slot->memory = static_cast<std::byte*>(slab.memory.get().address) + i * kSlotBytes;
    ASSIGN_OR_RETURN(slot->sent,
                     CreateEvent(*device_, "create an event for copies to GPU " + device_->uuid()));
    made.push_back(std::move(slot));
  }
  slabs_.push_back(std::move(slab));
  for (auto& slot : made) slots_.push_back(std::move(slot));
  {
    const MutexLock lock(mutex_);
    for (size_t i = slots_.size() - count; i < slots_.size(); ++i) free_.push_back(slots_[i].get());
  }
  returned_.NotifyAll();
  return OkStatus();
}

Status CopyRing::Grow(uint64_t slots) {
  const MutexLock lock(growth_);
  const auto have = static_cast<uint32_t>(slots_.size());
  if (have == max_slots_ || slots <= have || cannot_grow_) return OkStatus();
  const Status added =
      AddSlots(slots <= kFirstSlots ? std::min(kFirstSlots, max_slots_) - have : max_slots_ - have);
  // The slots that are there do for any copy.
  cannot_grow_ = have > 0 && added.code() == Code::kResourceExhausted;
  return cannot_grow_ ? OkStatus() : added;
}

Result<CopyRing::Slot*> CopyRing::Take() {
  const CudaDriver& driver = device_->driver();
  Slot* slot = nullptr;
  {
    const MutexLock lock(mutex_);
    while (free_.empty() && sent_.empty()) returned_.Wait(mutex_);  // other threads fill them all
    // A slot that the GPU has just read is more likely in the processor's cache than one never used.
    const bool read =
        !sent_.empty() &&
        (free_.empty() || driver.cuEventQuery(sent_.front()->sent.get().native) == CUDA_SUCCESS);
    if (!read) {
      slot = free_.back();
      free_.pop_back();
      return slot;
    }
    slot = sent_.front();
    sent_.pop_front();
  }
  const Status status = CudaStatus(driver.cuEventSynchronize(slot->sent.get().native),
                                   "wait for copies to GPU " + device_->uuid());
  if (status.ok()) return slot;
  GiveBackSent(slot);
  return status;
}

void CopyRing::GiveBackSent(Slot* slot) {
  {
    const MutexLock lock(mutex_);
    sent_.push_back(slot);
  }
  returned_.NotifyOne();
}

void CopyRing::GiveBackUnsent(Slot* slot) {
  {
    const MutexLock lock(mutex_);
    free_.push_back(slot);
  }
  returned_.NotifyOne();
}

}  // namespace pinfeed
