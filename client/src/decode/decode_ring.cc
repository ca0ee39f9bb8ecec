// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/decode_ring.h"

#include <algorithm>
#include <string>
#include <utility>

#include "client/src/memory/session_memory.h"

namespace pinfeed {
namespace {

using std::chrono::steady_clock;

// Between looks at a daemon's page and lifeline that did not change, and at a GPU that has yet to read a
// batch, of which nobody is told.
constexpr std::chrono::milliseconds kPageLook(50);
constexpr std::chrono::microseconds kGpuLook(300);

}  // namespace

Status DecodeRing::Allocate(DecodeEngine& engine, bool shared) {
  const MutexLock lock(mutex_);
  for (Entry& entry : entries_) entry.memory.reset();
  for (Entry& entry : entries_) {
    entry.batch.sequence = UINT64_MAX;  // none
    ASSIGN_OR_RETURN(entry.memory,
                     engine.MakeMemory(layout_.offer(), layout_.offsets(), layout_.bytes(), shared));
  }
  return OkStatus();
}

bool DecodeRing::IsOpen(uint64_t sequence) const {
  const Entry& entry = At(sequence);
  return entry.batch.sequence == sequence && IsNeeded(entry) && !AllClaimed(entry);
}

bool DecodeRing::TryClaim(Unit* unit, bool whole) {
  while (oldest_ < next_ && !IsOpen(oldest_)) ++oldest_;
  if (oldest_ == next_ || OneSuffices()) return false;
  Entry& entry = At(oldest_);
  *unit = {entry.batch, entry.memory.get(), 0, 0};
  ++entry.under_way;
  if (whole) {
    entry.copies_claimed = true;
    entry.next_sample = unit->end = entry.batch.samples;
    return true;
  }
  if (!entry.copies_claimed) {
    entry.copies_claimed = true;
    return true;
  }
  unit->begin = entry.next_sample;
  unit->end = unit->begin + std::min(unit_samples_, entry.batch.samples - unit->begin);
  entry.next_sample = unit->end;
  return true;
}

bool DecodeRing::OneSuffices() const {
  const bool works = std::ranges::any_of(entries_, [](const Entry& entry) { return entry.under_way != 0; });
  const uint64_t oldest_entry = next_ - std::min<uint64_t>(next_, kEntries);
  for (uint64_t n = std::max(oldest_entry, awaited_); n < next_; ++n) {
    const Entry& entry = At(n);
    if (entry.batch.sequence != n || entry.unwanted) continue;
    if (entry.state == State::kDecoding || entry.state == State::kDecoded)
      return works && entry.state == State::kDecoded;
  }
  return false;
}

bool DecodeRing::Claim(Unit* unit, bool whole) {
  while (true) {
    {
      const MutexLock lock(mutex_);
      while (true) {
        if (IsOver()) return false;
        if (TryClaim(unit, whole)) return true;
        if (!looking_ && oldest_ == next_) break;
        changed_.Wait(mutex_);
      }
      looking_ = true;
    }
    Look();
    const MutexLock lock(mutex_);
    looking_ = false;
    changed_.NotifyAll();
  }
}

void DecodeRing::Look() {
  if (hooks_.before_look) hooks_.before_look();
  uint64_t sequence = 0;
  DecodedMemory* written = nullptr;
  {
    const MutexLock lock(mutex_);
    sequence = next_;
    const Entry& entry = At(sequence);
    if (entry.state == State::kWritten && entry.readers.empty()) {
      written = entry.memory.get();
    } else if (entry.state != State::kFree || !entry.readers.empty()) {
      if (!IsOver()) (void)changed_.WaitUntil(mutex_, steady_clock::now() + kPageLook);
      return;
    }
  }
  if (written != nullptr) {
    const Result<bool> done = written->Written();
    if (!done.ok()) return Break(done.status());
    const MutexLock lock(mutex_);
    if (*done) {
      At(sequence).state = State::kFree;
    } else {
      (void)changed_.WaitUntil(mutex_, steady_clock::now() + kGpuLook);
    }
    return;
  }
  const uint32_t seen = reader_.WakeWord();
  BatchDescriptor batch;
  const Result<bool> published = reader_.Read(sequence, &batch);
  if (!published.ok()) return Break(published.status());
  if (!*published) return reader_.Sleep(seen, kPageLook);
  const MutexLock lock(mutex_);
  Entry& entry = At(sequence);
  if (next_ != sequence || !entry.readers.empty()) return;  // discarded, or asked for, meanwhile
  ++next_;
  entry.state = State::kDecoding;
  entry.batch = batch;
  entry.next_sample = 0;
  entry.copies_claimed = entry.unwanted = entry.filled = false;
  entry.failures.clear();
  last_begun_ = PlaceOf(entry);
  for (const auto& [reader, first] : readers_)
    if (first <= *last_begun_) entry.readers.insert(reader);
}

std::unique_ptr<DecodedMemory> DecodeRing::GiveBack(const Unit& unit, std::unique_ptr<DecodedMemory> memory) {
  const MutexLock lock(mutex_);
  Entry& entry = At(unit.batch.sequence);
  entry.memory.swap(memory);
  entry.copies_claimed = false;
  entry.next_sample = 0;
  if (--entry.under_way == 0 && !IsNeeded(entry)) entry.state = State::kFree;
  oldest_ = std::min(oldest_, unit.batch.sequence);
  changed_.NotifyAll();
  return memory;
}

bool DecodeRing::Finish(const Unit& unit, Failures failures, std::vector<uint32_t>* zeroed) {
  const MutexLock lock(mutex_);
  Entry& entry = At(unit.batch.sequence);
  entry.failures.merge(failures);
  if (!IsNeeded(entry)) {
    if (--entry.under_way == 0) entry.state = State::kFree;
    changed_.NotifyAll();
    return false;
  }
  if (entry.under_way > 1 || !AllClaimed(entry)) {
    --entry.under_way;
    return false;
  }
  // The unit stays under way until Complete.
  if (layout_.offer().zero_bad_samples)
    for (const auto& [sample, why] : entry.failures) zeroed->push_back(sample);
  return true;
}

void DecodeRing::Complete(const Unit& unit) {
  {
    const MutexLock lock(mutex_);
    Entry& entry = At(unit.batch.sequence);
    --entry.under_way;
    entry.filled = true;
    entry.state = entry.unwanted ? State::kFree : State::kDecoded;
    changed_.NotifyAll();
  }
  if (hooks_.changed) hooks_.changed();
}

void DecodeRing::Break(Status error) {
  {
    const MutexLock lock(mutex_);
    if (broken_.ok()) broken_ = std::move(error);
    changed_.NotifyAll();
  }
  if (hooks_.changed) hooks_.changed();
}

void DecodeRing::BeginThread() {
  const MutexLock lock(mutex_);
  ++threads_;
}

void DecodeRing::EndThread() {
  const MutexLock lock(mutex_);
  --threads_;
  changed_.NotifyAll();
}

void DecodeRing::AddReader(uint64_t reader, const Place& first) {
  const MutexLock lock(mutex_);
  readers_.emplace(reader, first);
  for (Entry& entry : entries_)
    if (entry.batch.sequence < next_ && first <= PlaceOf(entry) && CanBeFetched(entry))
      entry.readers.insert(reader);
}

void DecodeRing::RemoveReader(uint64_t reader) {
  const MutexLock lock(mutex_);
  readers_.erase(reader);
  for (Entry& entry : entries_) DropReader(entry, reader);
}

void DecodeRing::DropReader(Entry& entry, uint64_t reader) {
  if (entry.readers.erase(reader) == 0) return;
  if (entry.state == State::kDecoding && entry.under_way == 0 && !IsNeeded(entry)) entry.state = State::kFree;
  changed_.NotifyAll();
}

Result<std::optional<DecodeRing::ReadyBatch>> DecodeRing::FetchFor(uint64_t reader, const Place& place) {
  const MutexLock lock(mutex_);
  if (IsOver()) return NotFound("no more batches are decoded here");
  for (Entry& entry : entries_) {
    if (entry.batch.sequence >= next_) continue;
    if (PlaceOf(entry) < place) DropReader(entry, reader);
    if (PlaceOf(entry) != place || !CanBeFetched(entry)) continue;
    entry.readers.insert(reader);
    if (!entry.filled) return std::optional<ReadyBatch>();
    return std::optional<ReadyBatch>(
        {entry.batch.sequence, entry.memory->address(), entry.batch.samples, entry.failures});
  }
  if (last_begun_ && place <= *last_begun_)
    return NotFound("batch " + std::to_string(place.batch_index) + " of epoch " +
                    std::to_string(place.epoch) + " is no longer here");
  return std::optional<ReadyBatch>();
}

void DecodeRing::Fetched(uint64_t reader, uint64_t sequence) {
  const MutexLock lock(mutex_);
  if (Entry& entry = At(sequence); entry.batch.sequence == sequence) DropReader(entry, reader);
}

bool DecodeRing::IsAtEnd() const {
  const MutexLock lock(mutex_);
  return IsOver();
}

const DecodeRing::Entry* DecodeRing::Decoded(uint64_t sequence) const {
  const Entry& entry = At(sequence);
  const bool is_it = sequence < next_ && entry.batch.sequence == sequence && !entry.unwanted;
  return is_it && (entry.state == State::kDecoded || entry.state == State::kWriting) ? &entry : nullptr;
}

void DecodeRing::Expect(uint64_t sequence) {
  if (sequence <= awaited_) return;
  awaited_ = sequence;
  changed_.NotifyAll();
}

bool DecodeRing::IsDecoded(uint64_t sequence) {
  const MutexLock lock(mutex_);
  Expect(sequence);
  return Decoded(sequence) != nullptr || !broken_.ok();
}

bool DecodeRing::AwaitDecoded(uint64_t sequence, SteadyTime deadline) {
  const MutexLock lock(mutex_);
  Expect(sequence);
  while (Decoded(sequence) == nullptr && broken_.ok()) {
    if (!changed_.WaitUntil(mutex_, deadline)) return Decoded(sequence) != nullptr || !broken_.ok();
  }
  return true;
}

Result<DecodeRing::Outcome> DecodeRing::OutcomeOf(uint64_t sequence) const {
  const MutexLock lock(mutex_);
  const Entry* const entry = Decoded(sequence);
  if (entry == nullptr)
    return broken_.ok() ? Internal("batch " + std::to_string(sequence) + " was not decoded") : broken_;
  Outcome outcome;
  if (entry->failures.empty()) return outcome;
  outcome.first_failure = FailureOf(*entry);
  if (!layout_.offer().zero_bad_samples) {
    const Status& why = outcome.first_failure;
    return Status(why.code(), why.message() + " (on_bad_sample \"zero\" would go on)", why.native_error());
  }
  for (const auto& [sample, failure] : entry->failures) outcome.zeroed.push_back(sample);
  return outcome;
}

Status DecodeRing::FailureOf(const Entry& entry) {
  const auto& [sample, why] = *entry.failures.begin();
  return Status(why.code(),
                "image " + std::to_string(sample) + " of batch " + std::to_string(entry.batch.batch_index) +
                    " of epoch " + std::to_string(entry.batch.epoch) +
                    " cannot be decoded by the GPU: " + why.message(),
                why.native_error());
}

Status DecodeRing::Write(const BatchDescriptor& batch, const OutputMemory& outputs, void* stream,
                         SteadyTime deadline) {
  if (!AwaitDecoded(batch.sequence, deadline)) {
    return {Code::kDeadlineExceeded, "the GPU has not decoded the images of batch " +
                                         std::to_string(batch.batch_index) + " in time; does it answer?"};
  }
  RETURN_IF_ERROR(OutcomeOf(batch.sequence).status());
  DecodedMemory* memory = nullptr;
  {
    const MutexLock lock(mutex_);
    Entry& entry = At(batch.sequence);
    if (entry.state != State::kDecoded || entry.batch.samples != batch.samples ||
        entry.batch.slot != batch.slot)
      return BrokenSession("batch " + std::to_string(batch.sequence) + " is not the one that was decoded");
    entry.state = State::kWriting;
    memory = entry.memory.get();
  }
  Status queued = memory->Write(batch.samples, outputs, stream);
  const MutexLock lock(mutex_);
  At(batch.sequence).state = queued.ok() ? State::kWritten : State::kDecoded;
  changed_.NotifyAll();
  return queued;
}

void DecodeRing::Discard(uint64_t sequence) {
  const MutexLock lock(mutex_);
  if (sequence >= next_) {  // its decoding was never begun
    next_ = sequence + 1;
  } else if (Entry& entry = At(sequence); entry.batch.sequence == sequence) {
    entry.unwanted = true;
    const bool awaited = entry.state == State::kDecoding && IsNeeded(entry);
    if (entry.under_way == 0 && entry.state != State::kWritten && !awaited) entry.state = State::kFree;
  }
  changed_.NotifyAll();
}

void DecodeRing::RequestStop() {
  const MutexLock lock(mutex_);
  stopping_ = true;
  changed_.NotifyAll();
  reader_.WakeSleepers();
}

bool DecodeRing::AwaitThreads(SteadyTime deadline) {
  const MutexLock lock(mutex_);
  while (threads_ > 0) {
    if (!changed_.WaitUntil(mutex_, deadline)) return threads_ == 0;
  }
  return true;
}

uint64_t DecodeRing::AwaitWrites(SteadyTime deadline) {
  const MutexLock lock(mutex_);
  uint64_t kept = 0;
  for (Entry& entry : entries_) {
    if (entry.memory == nullptr || entry.state != State::kWritten) continue;
    Result<bool> done = entry.memory->Written();
    while (done.ok() && !*done && steady_clock::now() < deadline) {
      (void)changed_.WaitUntil(mutex_, steady_clock::now() + kGpuLook);
      done = entry.memory->Written();
    }
    if (done.ok() && *done) continue;
    entry.memory->Abandon();
    kept += layout_.bytes();
  }
  return kept;
}

}  // namespace pinfeed
