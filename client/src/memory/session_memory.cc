// SPDX-License-Identifier: Apache-2.0
#include "client/src/memory/session_memory.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "common/wire/shared_page.h"

namespace pinfeed {
namespace {

// Indexes of the descriptors in the welcome, as common/wire/shared_page.h lists them.
enum WelcomeFd : size_t { kPublishFd, kReleaseFd, kDoorbellFd, kArenaFd, kResidentFd };

Result<Mapping> MapChecked(const UniqueFd& fd, uint64_t bytes, Access access, bool populate,
                           const char* name) {
  const Status sealed = CheckSealedSize(fd.get(), bytes);
  if (sealed.native_error() != 0) return sealed.WithContext(name);
  if (!sealed.ok()) return BrokenSession(std::string(name) + ": " + sealed.message());
  return Mapping::Map(fd.get(), bytes, access, populate).WithContext(name);
}

Status CheckDoorbell(const UniqueFd& fd) {
  // A release rings it and must never block.
  const int flags = ::fcntl(fd.get(), F_GETFL);
  if (flags < 0) return ErrnoStatus("read the doorbell's flags", errno);
  if ((flags & O_NONBLOCK) == 0) return BrokenSession("the doorbell is a blocking descriptor");
  return OkStatus();
}

Status CheckPublishPage(const PublishPage& page, uint32_t slot_count) {
  if (page.magic != kPublishPageMagic)
    return BrokenSession("the publish page does not start with its magic number");
  if (page.version != kProtocolVersion) {
    return BrokenSession("the publish page has version " + std::to_string(page.version) + ", expected " +
                         std::to_string(kProtocolVersion));
  }
  if (page.slot_count != slot_count) {
    return BrokenSession("the publish page is for " + std::to_string(page.slot_count) +
                         " slots, the offer for " + std::to_string(slot_count));
  }
  return OkStatus();
}

}  // namespace

Status BrokenSession(const std::string& what) {
  return Internal("the daemon's session is unusable: " + what +
                  "; are pinfeedd and libpinfeed of the same version?");
}

Result<SessionMemory> MapSessionMemory(const FeedOffer& offer, int ordinal, std::vector<UniqueFd>& fds,
                                       bool* memory_unusable) {
  SessionMemory memory;
  RETURN_IF_ERROR(CheckDoorbell(fds[kDoorbellFd]));
  memory.doorbell = std::move(fds[kDoorbellFd]);
  ASSIGN_OR_RETURN(memory.publish,
                   MapChecked(fds[kPublishFd], kPublishPageBytes, Access::kReadOnly, true, "publish page"));
  RETURN_IF_ERROR(
      CheckPublishPage(*reinterpret_cast<const PublishPage*>(memory.publish.data()), offer.slot_count));
  ASSIGN_OR_RETURN(memory.release,
                   MapChecked(fds[kReleaseFd], kReleasePageBytes, Access::kReadWrite, true, "release page"));
  if (offer.backend == Backend::kHost) {
    const Access access = offer.read_only ? Access::kReadOnly : Access::kReadWrite;
    // Not populated: that would delay the first batch for pages that are needed later.
    ASSIGN_OR_RETURN(memory.arena, MapChecked(fds[kArenaFd], offer.arena_bytes, access, false, "arena"));
    if (!offer.resident) return memory;
    Result<std::unique_ptr<ResidentSamples>> resident =
        MapResidentSamples(offer, ordinal, std::move(fds[kResidentFd]));
    *memory_unusable = !resident.ok();
    if (!resident.ok()) return resident.status().WithContext("resident samples");
    memory.resident = *std::move(resident);
    return memory;
  }
  auto* const page = reinterpret_cast<ReleasePage*>(memory.release.data());
  UniqueFd fd = offer.backend == Backend::kVmmFd ? std::move(fds[kArenaFd]) : UniqueFd();
  Result<std::unique_ptr<DeviceSlots>> slots =
      MapDeviceSlots(offer, ordinal, std::move(fd), page, kReleasePageBytes);
  *memory_unusable = !slots.ok();
  if (!slots.ok()) return slots.status();
  memory.device = *std::move(slots);
  return memory;
}

}  // namespace pinfeed
