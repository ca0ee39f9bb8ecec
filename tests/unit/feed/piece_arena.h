// SPDX-License-Identifier: Apache-2.0
// Slots that are filled in pieces, for which there is little memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/sync.h"
#include "tests/unit/feed/feed_fixture.h"

namespace pinfeed {

inline constexpr uint32_t kPieceSamples = 3;

// Slots that a thread copies pieces to, from memory for two of them unless told otherwise. What it copied
// from is overwritten before it is given back.
class PieceArena final : public ArenaOverHost {
 public:
  PieceArena(std::unique_ptr<HostArena> slots, bool held, uint32_t pieces = 2)
      : ArenaOverHost(std::move(slots)),
        pieces_(pieces, std::vector<std::byte>(layout().slot_stride)),
        held_(held),
        copier_([this] { Run(); }) {
    for (uint32_t piece = 0; piece < pieces; ++piece) Free(piece);
  }
  ~PieceArena() override {
    Push({});
    copier_.join();
  }
  Backend backend() const override { return Backend::kVmmFd; }  // which copies
  uint32_t piece_samples() const override { return kPieceSamples; }
  bool Take(Piece* piece) override PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (free_.empty()) return false;
    piece->memory = free_.back();
    free_.pop_back();
    return true;
  }
  void Return(const Piece& piece) override PF_EXCLUDES(mutex_) {
    std::vector<std::byte>& memory = pieces_[piece.memory];
    std::memset(memory.data(), 0xee, memory.size());
    Free(piece.memory);
  }
  std::byte* FillAddress(const Piece& piece, size_t tensor) override {
    return pieces_[piece.memory].data() + layout().tensors[tensor].offset;
  }
  void Deliver(const Piece& piece, const SlotRange& landing, Done done) override {
    Push({piece, landing, std::move(done)});
  }

  void LetGo() PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    held_ = false;
    changed_.NotifyAll();
  }
  size_t waiting() const PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return jobs_.size();
  }

 private:
  struct Job {
    Piece piece;
    SlotRange landing;
    Done done;  // none: the end
  };
  void Free(uint32_t memory) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    free_.push_back(memory);
  }
  void Push(Job job) PF_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    jobs_.push_back(std::move(job));
    changed_.NotifyAll();
  }
  void Run() {
    while (true) {
      Job job;
      {
        const MutexLock lock(mutex_);
        while (jobs_.empty() || (held_ && jobs_.front().done)) changed_.Wait(mutex_);
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      if (!job.done) return;
      for (size_t t = 0; t < layout().tensors.size(); ++t) {
        const TensorPlace& place = layout().tensors[t];
        const bool packed = place.spec.packed();
        const uint32_t first = packed ? job.piece.begin : job.landing.first;
        const uint64_t bytes = packed ? job.landing.packed_rows[t] * place.spec.RowBytes()
                                      : job.landing.samples * place.sample_bytes;
        std::memcpy(memory().FillAddress({job.piece.slot, first, 0, 0}, t), FillAddress(job.piece, t), bytes);
      }
      Return(job.piece);
      job.done(OkStatus(), {});
    }
  }

  std::vector<std::vector<std::byte>> pieces_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool held_ PF_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ PF_GUARDED_BY(mutex_);
  std::deque<Job> jobs_ PF_GUARDED_BY(mutex_);
  std::thread copier_;
};

}  // namespace pinfeed
