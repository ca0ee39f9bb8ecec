// SPDX-License-Identifier: Apache-2.0
#include "client/src/session/session.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "client/src/base/client_log.h"

namespace pinfeed {
namespace {

// Time for a stream to reach its last release after the session closed: more than any training step takes.
constexpr std::chrono::seconds kSettle(10);

// For the daemon to confirm the end of a session.
constexpr std::chrono::seconds kFarewell(2);

// For a process that is ending, which closes its descriptors one by one.
constexpr std::chrono::milliseconds kEnding(200);

}  // namespace

Result<std::shared_ptr<Session>> Session::Attach(FeedOffer offer, int ordinal,
                                                 const std::shared_ptr<DecodeEngine>& engine,
                                                 SteadyTime deadline, Unusable* unusable) {
  *unusable = Unusable::kNothing;
  std::vector<UniqueFd> fds;
  const size_t fd_count = offer.resident                       ? kLifelineFdsResident
                          : offer.backend == Backend::kCudaIpc ? kLifelineFdsDevice
                                                               : kLifelineFdsHost;
  const bool decodes = offer.Decoded() != nullptr;
  ASSIGN_OR_RETURN(Lifeline lifeline,
                   Lifeline::Attach(offer.lifeline_path, FirstFrame(LifelineKind::kHello, offer.token),
                                    fd_count, deadline, &fds, /*and_link=*/decodes));
  UniqueFd link;
  if (fds.size() > fd_count) link = std::move(fds.back());
  bool memory_unusable = false;
  Result<SessionMemory> memory = MapSessionMemory(offer, ordinal, fds, &memory_unusable);
  if (memory.ok()) {
    std::shared_ptr<Session> session(
        new Session(std::move(offer), ordinal, std::move(lifeline), *std::move(memory)));
    Status decoding = session->StartDecoding(engine, std::move(link));
    if (decoding.ok()) return session;
    if (decoding.code() == Code::kResourceExhausted) *unusable = Unusable::kDecoder;
    session->End();  // the next session finds the daemon's memory free
    return decoding;
  }
  // The handles of a daemon that died are invalid, even if its sockets are not closed yet.
  if (memory_unusable &&
      lifeline.WaitForHangUp(std::min(deadline, std::chrono::steady_clock::now() + kEnding)))
    return Unavailable("the daemon went away: " + memory.status().message());
  if (memory_unusable) *unusable = offer.resident ? Unusable::kResident : Unusable::kBackend;
  // Nothing stays mapped.
  lifeline.SayBye();
  lifeline.WaitForHangUp(deadline);
  return memory.status();
}

Session::Session(FeedOffer offer, int ordinal, Lifeline lifeline, SessionMemory memory)
    : offer_(std::move(offer)),
      lifeline_(std::move(lifeline)),
      pages_(offer_, lifeline_, std::move(memory.publish), std::move(memory.release),
             std::move(memory.doorbell)),
      slots_(offer_, ordinal, std::move(memory.arena), std::move(memory.device)),
      resident_(std::move(memory.resident)) {}

Status Session::StartDecoding(const std::shared_ptr<DecodeEngine>& engine, UniqueFd link) {
  if (offer_.Decoded() == nullptr) return OkStatus();
  if (engine == nullptr)
    return Internal("the daemon wants images to be decoded here, which was not offered to it");
  Result<std::unique_ptr<DecodedBatches>> decoded =
      DecodedBatches::Start(offer_, pages_.reader(), slots_.address(0), engine, lifeline_, std::move(link));
  if (decoded.ok()) {
    decoded_ = *std::move(decoded);
    return OkStatus();
  }
  const Status& why = decoded.status();
  if (why.code() != Code::kResourceExhausted) return why;
  return {why.code(),
          why.message() + "; smaller batches need less of the GPU's memory, and decode \"cpu\" needs none",
          why.native_error()};
}

Session::~Session() {
  // In a forked child the socket and the GPU's context belong to the parent. A bye would end the parent's
  // session.
  if (!fork_guard_.InCreatorProcess()) {
    (void)decoded_.release();
    (void)resident_.release();
    slots_.Abandon();
    return;
  }
  // Without a bye the daemon keeps its memory until this process ends.
  if (Unmap(std::chrono::steady_clock::now() + kSettle)) lifeline_.SayBye();
}

bool Session::Unmap(SteadyTime deadline) {
  Status unmapped = resident_ != nullptr ? resident_->Unmap(deadline) : OkStatus();
  if (!unmapped.ok())
    (void)resident_.release();
  else if (decoded_ != nullptr)
    unmapped = decoded_->Stop(deadline);
  if (unmapped.ok()) {
    resident_.reset();
    decoded_.reset();
    unmapped = slots_.Unmap(deadline);
  } else {
    (void)decoded_.release();
    slots_.LeakArena();
    pages_.LeakPublishPage();
  }
  if (unmapped.ok()) return true;
  // Without a bye the daemon also keeps what this process has mapped and gives it to no other feed.
  if (unmapped.code() != Code::kCancelled) {  // the process is not exiting
    ClientLog(PF_LOG_WARNING, "the slots of a closed feed cannot be returned: " + unmapped.message() +
                                  "; the daemon reclaims their memory when this process ends");
  }
  pages_.LeakReleasePage();
  lifeline_ = Lifeline();  // closed, so that no bye is sent
  return false;
}

void Session::End() {
  const SteadyTime deadline = std::chrono::steady_clock::now() + kFarewell;
  if (pages_.held() > 0) {
    lifeline_.SayLeave();
    (void)pages_.AwaitLimit(deadline);
    return;
  }
  // A trainer's stream may be waiting for other ranks; giving up would leak the arena.
  if (!Unmap(std::max(deadline, std::chrono::steady_clock::now() + kSettle))) return;
  lifeline_.SayBye();
  lifeline_.WaitForHangUp(deadline);
  lifeline_ = Lifeline();  // closed, so that the destructor sends no bye
}

Status Session::RowOffsets(const BatchDescriptor& batch, const OfferedOutput& output,
                           std::span<int64_t> offsets) const {
  std::vector<uint32_t> zeroed;
  if (decoded_ != nullptr) {
    Result<DecodeRing::Outcome> outcome = decoded_->OutcomeOf(batch.sequence);
    if (outcome.ok()) zeroed = std::move(outcome->zeroed);
  }
  return slots_.RowOffsets(batch, output, zeroed, offsets);
}

void Session::Release(const BatchDescriptor& batch) {
  if (decoded_ != nullptr) decoded_->Discard(batch.sequence);
  pages_.Release(batch);
}

Status Session::ReleaseOn(const BatchDescriptor& batch, void* stream) {
  if (slots_.on_device() == nullptr) {
    Release(batch);
    return OkStatus();
  }
  pages_.BeginReturn(batch);
  Status released = slots_.on_device()->Release(batch, stream);
  if (!released.ok()) pages_.CancelReturn(batch);
  if (released.code() == Code::kCancelled) return released;  // the process is exiting, and the feed with it
  if (!released.ok()) {
    // Logged, because a tensor's destructor often calls this and cannot return an error.
    ClientLog(PF_LOG_WARNING, "a slot cannot be returned: " + released.message() +
                                  "; it is lost to this feed, and no batch comes once all slots are lost");
    return released;
  }
  pages_.EndReturn();
  return OkStatus();
}

Status Session::WriteOnHost(const BatchDescriptor& batch, const OutputMemory& outputs, void* stream) {
  if (decoded_ != nullptr) return decoded_->Write(batch, outputs, stream);
  if (resident_ == nullptr) return slots_.CopyTo(outputs, batch);
  const std::byte* const list = slots_.address(batch.slot) + offer_.layout.tensors.front().offset;
  return resident_->Write({list, batch.samples * sizeof(uint32_t)}, batch.epoch, outputs, stream);
}

Status Session::Write(const BatchDescriptor& batch, const OutputMemory& outputs, void* stream) {
  if (slots_.on_device() == nullptr) {
    RETURN_IF_ERROR(WriteOnHost(batch, outputs, stream));
    pages_.Release(batch);
    return OkStatus();
  }
  pages_.BeginReturn(batch);
  Status written = slots_.on_device()->Write(batch, outputs, stream);
  if (!written.ok()) {
    pages_.CancelReturn(batch);
    return written;
  }
  pages_.EndReturn();
  return OkStatus();
}

}  // namespace pinfeed
