// SPDX-License-Identifier: Apache-2.0
#include <span>
#include <utility>

#include "server/loading/batch_fill.h"
#include "server/loading/batch_producer.h"
#include "server/memory/host_memory_ledger.h"

namespace pinfeed {

Status PieceRequest::Prepare(Arena& arena, const Piece& piece, uint32_t begin, uint32_t end) {
  return HostMemoryLedger::ForThisProcess().large_samples().Try(
      [&] { return arena.Prepare(piece, begin, end); });
}

Status PieceRequest::Places(uint32_t begin, uint32_t end, SamplePlaces& places) const {
  PF_CHECK(parts_.piece.begin <= begin && begin < end && end <= parts_.piece.end,
           "places are of the piece's samples");
  RETURN_IF_ERROR(Prepare(begin, end));
  Arena& arena = parts_.context.arena;
  const std::vector<TensorPlace>& tensors = arena.layout().tensors;
  std::vector<std::span<std::byte>> memory(tensors.size());
  for (size_t t = 0; t < memory.size(); ++t) {
    const uint64_t bytes = tensors[t].sample_bytes;
    std::byte* const first = arena.FillAddress(parts_.piece, t);
    memory[t] = tensors[t].spec.packed() ? std::span(first, (parts_.piece.end - parts_.piece.begin) * bytes)
                                         : std::span(first + (begin - parts_.piece.begin) * bytes, bytes);
  }
  places = SamplePlaces(std::move(memory), arena.layout(), parts_.piece.begin, parts_.packed_rows);
  return OkStatus();
}

void PieceRequest::Bad(uint32_t index, Status why) const {
  PF_CHECK(parts_.piece.begin <= index && index < parts_.piece.end, "a bad sample is one of the piece's");
  if (!completed_.load(std::memory_order_relaxed)) parts_.batch->OnBad(index, std::move(why));
}

void PieceRequest::LeaveOut(uint32_t index) const {
  PF_CHECK(parts_.piece.begin <= index && index < parts_.piece.end,
           "a sample left out is one of the piece's");
  if (!completed_.load(std::memory_order_relaxed)) parts_.batch->OnLeftOut(index);
}

bool PieceRequest::Replace() const {
  return parts_.batch->OnReplace();
}

void PieceRequest::Trace(uint32_t samples, std::optional<WorkSpans>& spans) const {
  const FeedRecorder& recorder = parts_.context.recorder;
  if (recorder.On()) recorder.Work(parts_.plan, parts_.piece.slot, samples, spans);
}

bool PieceRequest::Complete(Status status) {
  if (completed_.exchange(true)) return false;
  parts_.batch->OnComplete(parts_.index, std::move(status));
  return true;
}

}  // namespace pinfeed
