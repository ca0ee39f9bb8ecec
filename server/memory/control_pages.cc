// SPDX-License-Identifier: Apache-2.0
#include "server/memory/control_pages.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace pinfeed {

Result<std::unique_ptr<ControlPages>> ControlPages::Create(uint32_t slot_count) {
  ASSIGN_OR_RETURN(UniqueFd publish_fd, CreateMemfd("pinfeed-publish", kPublishPageBytes));
  ASSIGN_OR_RETURN(Mapping publish,
                   Mapping::Map(publish_fd.get(), kPublishPageBytes, Access::kReadWrite, true));
  RETURN_IF_ERROR(SealAgainstNewWriters(publish_fd.get()));
  ASSIGN_OR_RETURN(UniqueFd release_fd, CreateMemfd("pinfeed-release", kReleasePageBytes));
  RETURN_IF_ERROR(SealAgainstSeals(release_fd.get()));
  ASSIGN_OR_RETURN(Mapping release,
                   Mapping::Map(release_fd.get(), kReleasePageBytes, Access::kReadOnly, true));
  UniqueFd doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell) return ErrnoStatus("create an eventfd for a session's doorbell", errno);
  return std::unique_ptr<ControlPages>(new ControlPages(std::move(publish_fd), std::move(publish),
                                                        std::move(release_fd), std::move(release),
                                                        std::move(doorbell), slot_count));
}

ControlPages::ControlPages(UniqueFd publish_fd, Mapping publish, UniqueFd release_fd, Mapping release,
                           UniqueFd doorbell, uint32_t slot_count)
    : publish_fd_(std::move(publish_fd)),
      publish_(std::move(publish)),
      release_fd_(std::move(release_fd)),
      release_(std::move(release)),
      doorbell_(std::move(doorbell)) {
  auto* page = new (publish_.data()) PublishPage{};
  page->version = kProtocolVersion;
  page->slot_count = slot_count;
  page->state.store(static_cast<uint32_t>(FeedState::kRunning), std::memory_order_relaxed);
  page->limit.store(kUnlimited, std::memory_order_relaxed);
  page->magic = kPublishPageMagic;
}

bool ControlPages::Publish(const BatchDescriptor& descriptor) {
  if (state_ != FeedState::kRunning) return false;
  PublishPage* page = publish_page();
  BatchDescriptor& entry = page->ring[published_ % kMaxSlots];
  entry = descriptor;
  entry.sequence = published_;
  ++published_;
  page->published.store(published_, std::memory_order_release);
  page->wake.fetch_add(1, std::memory_order_release);
  return true;
}

void ControlPages::SetState(FeedState state) {
  if (IsFinal() || state == state_) return;
  state_ = state;
  publish_page()->state.store(static_cast<uint32_t>(state), std::memory_order_release);
  Wake();
}

void ControlPages::Fail(const Status& error) {
  if (IsFinal()) return;
  SetError(error);
  SetState(FeedState::kFailed);
}

uint64_t ControlPages::Evict(const Status& error) {
  if (state_ != FeedState::kFailed && state_ != FeedState::kEvicted) SetError(error);
  state_ = FeedState::kEvicted;
  // Must be sequentially consistent. The client stores `taken` and then loads `state`, so at least one side
  // sees the other's store.
  PublishPage* const page = publish_page();
  page->state.store(static_cast<uint32_t>(state_), std::memory_order_seq_cst);
  if (limit_ == kUnlimited) {
    limit_ = std::min(release_page()->taken.load(std::memory_order_seq_cst), published());
    page->limit.store(limit_, std::memory_order_release);
  }
  Wake();
  return limit_;
}

bool ControlPages::IsFinal() const {
  return state_ == FeedState::kFailed || state_ == FeedState::kEnded || state_ == FeedState::kEvicted;
}

void ControlPages::SetError(const Status& error) {
  PublishPage* page = publish_page();
  const size_t bytes = std::min<size_t>(error.message().size(), kMaxErrorBytes);
  std::memcpy(page->error_text, error.message().data(), bytes);
  page->error_bytes = static_cast<uint32_t>(bytes);
  page->error_code = static_cast<uint32_t>(error.code());
}

void ControlPages::SetStarved(bool starved) {
  // Must be sequentially consistent. The client stores the release word and then loads `starved`, so at least
  // one side sees the other's store.
  publish_page()->starved.store(starved ? 1 : 0, std::memory_order_seq_cst);
}

void ControlPages::Wake() {
  publish_page()->wake.fetch_add(1, std::memory_order_release);
  WakeClient();
}

uint64_t ControlPages::Released(uint32_t slot) const {
  return release_page()->slots[slot].generation.load(std::memory_order_seq_cst);
}

ControlPages::ClientStats ControlPages::Stats() const {
  const ReleasePage* page = release_page();
  return {page->taken.load(std::memory_order_relaxed), page->wait_ns.load(std::memory_order_relaxed),
          page->waiting_since_ns.load(std::memory_order_seq_cst),  // against SetStarved, like a release word
          page->copied.load(std::memory_order_relaxed)};
}

}  // namespace pinfeed
