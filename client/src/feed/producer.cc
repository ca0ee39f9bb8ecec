// SPDX-License-Identifier: Apache-2.0
#include "client/src/feed/producer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <string_view>
#include <vector>

#include "common/base/quote.h"
#include "common/spec/feed_spec.h"
#include "pinfeed/v1/feeder.pb.h"
#include "proto/convert.h"

namespace pinfeed {
namespace {

// For a daemon that does not read its lifelines.
constexpr std::chrono::seconds kDonePatience{10};

Status Unusable(const std::string& what) {
  return InvalidArgument("the invitation is unusable: " + what +
                         "; pass the bytes of pf_invite_producer, from a library of the same version");
}

Status BrokenTask(const std::string& what) {
  return Internal("the daemon sent an impossible task: " + what +
                  "; are pinfeedd and libpinfeed of the same version?");
}

Status CheckArena(const Invitation& invitation) {
  const uint64_t stride = invitation.layout.slot_stride;
  if (invitation.slot_count < kMinSlots || invitation.slot_count > kMaxSlots) {
    return Unusable(std::to_string(invitation.slot_count) + " slots, where " + std::to_string(kMinSlots) +
                    " to " + std::to_string(kMaxSlots) + " are possible");
  }
  uint64_t slots_bytes = 0;
  if (stride == 0 || stride % kTensorAlignment != 0 ||
      !CheckedMul(stride, invitation.slot_count, &slots_bytes) || slots_bytes > invitation.arena_bytes) {
    return Unusable(std::to_string(invitation.slot_count) + " slots of " + std::to_string(stride) +
                    " bytes in an arena of " + std::to_string(invitation.arena_bytes));
  }
  return OkStatus();
}

// Moves the tensor that the daemon fills out of the layout.
Status TakeSampleIds(Invitation& invitation) {
  std::vector<TensorPlace>& tensors = invitation.layout.tensors;
  const auto found = std::ranges::find_if(
      tensors, [](const TensorPlace& tensor) { return tensor.spec.name == kSampleIdTensor; });
  if (found == tensors.end()) return Unusable("it has no tensor 'sample_id'");
  if (found->spec.dtype != DType::kInt64 || !found->spec.shape.empty())
    return Unusable("its tensor 'sample_id' is not one int64 per sample");
  invitation.sample_ids = std::move(*found);
  tensors.erase(found);
  if (tensors.empty()) return Unusable("it has no tensor to fill");
  return OkStatus();
}

// Maps the arena for writing, so that no forked child inherits it.
Result<Mapping> MapArena(int fd, uint64_t bytes, SteadyTime deadline) {
  const Status sealed = CheckSealedSize(fd, bytes);
  if (sealed.native_error() != 0) return sealed;
  if (!sealed.ok()) {
    return Internal("the daemon's memory is unusable: " + sealed.message() +
                    "; are pinfeedd and libpinfeed of the same version?");
  }
  ASSIGN_OR_RETURN(const NoForkScope no_fork, NoForkScope::Enter(deadline));  // between mmap and madvise
  // Not populated: a task needs one slot only.
  ASSIGN_OR_RETURN(Mapping arena, Mapping::Map(fd, bytes, Access::kReadWrite, false));
  if (::madvise(arena.data(), arena.size(), MADV_DONTFORK) != 0)
    return ErrnoStatus("keep forked children from inheriting the feed's memory", errno);
  return arena;
}

// Copies the text to a frame as whole characters of UTF-8.
template <size_t kRoom>
void CopyText(const std::string& text, char (&room)[kRoom]) {
  const std::string valid = IsUtf8(text) ? text : EscapeUnprintable(text);
  size_t bytes = 0;
  while (bytes < valid.size()) {
    // An embedded NUL would end the text for the reader.
    const size_t length = valid[bytes] == '\0' ? 0 : Utf8Length(std::string_view(valid).substr(bytes));
    if (length == 0 || bytes + length > kRoom) break;
    bytes += length;
  }
  std::copy_n(valid.begin(), bytes, room);
}

}  // namespace

Result<std::string> InvitationTo(const FeedOffer& offer, uint32_t lane) {
  if (!offer.produced) {
    return FailedPrecondition(
        "invite a producer: the daemon reads the dataset of this feed itself; only a feed with "
        "dataset.produced has producers");
  }
  const OfferedProduction& produced = *offer.produced;
  if (const uint32_t lanes = std::max(produced.lanes, 1U); lane >= lanes) {
    return InvalidArgument("invite a producer: there is no lane " + std::to_string(lane) +
                           ": dataset.produced.lanes allows those below " + std::to_string(lanes));
  }
  ASSIGN_OR_RETURN(const NoForkScope no_fork, NoForkScope::Enter(SteadyTime::max()));
  v1::ProducerInvitation invitation;
  invitation.set_lifeline_path(offer.lifeline_path);
  invitation.set_token(offer.token.data(), offer.token.size());
  invitation.set_lane(lane);
  invitation.set_arena_bytes(offer.arena_bytes);
  invitation.set_slot_count(offer.slot_count);
  invitation.set_slot_stride(offer.layout.slot_stride);
  invitation.set_batch_size(offer.layout.batch_size);
  for (const TensorPlace& place : offer.layout.tensors) {
    const std::string& name = place.spec.name;  // decoded images are the daemon's to fill
    if (name == kSampleIdTensor || std::ranges::count(produced.fields, name) > 0)
      *invitation.add_tensors() = ToProto(place);
  }
  return invitation.SerializeAsString();
}

Result<Invitation> ParseInvitation(const std::string& serialized, SteadyTime deadline) {
  ASSIGN_OR_RETURN(const NoForkScope no_fork, NoForkScope::Enter(deadline));
  v1::ProducerInvitation message;
  if (!message.ParseFromString(serialized)) return Unusable("it is not a ProducerInvitation");
  Invitation invitation;
  invitation.lifeline_path = message.lifeline_path();
  if (invitation.lifeline_path.empty() || invitation.lifeline_path.front() != '/')
    return Unusable("the lifeline's path is not absolute");
  if (message.token().size() != invitation.token.size()) {
    return Unusable("its token has " + std::to_string(message.token().size()) + " bytes, expected " +
                    std::to_string(invitation.token.size()));
  }
  std::copy(message.token().begin(), message.token().end(), invitation.token.begin());
  invitation.lane = message.lane();
  invitation.arena_bytes = message.arena_bytes();
  invitation.slot_count = message.slot_count();
  invitation.layout.slot_stride = message.slot_stride();
  invitation.layout.batch_size = message.batch_size();
  for (const v1::TensorPlace& tensor : message.tensors()) {
    Result<TensorPlace> place = FromProto(tensor);
    if (!place.ok()) return Unusable(place.status().message());
    if (place->spec.extents || place->spec.lengths)
      return Unusable("tensor '" + place->spec.name + "' is packed or padded");
    invitation.layout.tensors.push_back(std::move(place).value());
  }
  RETURN_IF_ERROR(CheckArena(invitation));
  if (const Status checked = CheckLayout(invitation.layout); !checked.ok())
    return Unusable(checked.message());
  RETURN_IF_ERROR(TakeSampleIds(invitation));
  return invitation;
}

Result<std::unique_ptr<Producer>> Producer::Attach(Invitation invitation, SteadyTime deadline) {
  LifelineFrame first = FirstFrame(LifelineKind::kProduce, invitation.token);
  first.code = invitation.lane;
  std::vector<UniqueFd> fds;
  ASSIGN_OR_RETURN(Lifeline lifeline,
                   Lifeline::Attach(invitation.lifeline_path, first, kLifelineFdsProducer, deadline, &fds));
  ASSIGN_OR_RETURN(Mapping arena, MapArena(fds[0].get(), invitation.arena_bytes, deadline));
  return std::unique_ptr<Producer>(
      new Producer(std::move(invitation), std::move(lifeline), std::move(arena)));
}

Producer::~Producer() {
  if (fork_guard_.InCreatorProcess()) return;
  // Not inherited, so its addresses may be other memory of the child by now.
  (void)new (std::nothrow) Mapping(std::move(arena_));
}

Status Producer::CheckProcess() const {
  if (fork_guard_.InCreatorProcess()) return OkStatus();
  return FailedPrecondition(
      "this producer belongs to the parent process; a forked child needs an invitation of its own");
}

Result<ProducerTask> Producer::Next(const Deadline& deadline) {
  RETURN_IF_ERROR(CheckProcess());
  if (!begun_.empty()) {
    const ProducerTask task = begun_.front();
    begun_.pop_front();
    return task;
  }
  RETURN_IF_ERROR(broken_);
  UniqueFd none;
  Result<LifelineFrame> frame = lifeline_.Receive(deadline, &none);
  Result<ProducerTask> task = frame.ok() ? Begin(*frame) : Result<ProducerTask>(frame.status());
  if (task.status().code() == Code::kInternal) broken_ = task.status();
  return task;
}

Result<UniqueFd> Producer::Memory(uint64_t task, uint64_t bytes, const Deadline& deadline) {
  ASSIGN_OR_RETURN(const ProducerTask open, Find(task));
  if (bytes == 0) return InvalidArgument("memory of 0 bytes for a batch");
  RETURN_IF_ERROR(broken_);
  LifelineFrame frame = MakeLifelineFrame(LifelineKind::kMemory);
  frame.memory = {open.task, bytes, {}};
  RETURN_IF_ERROR(lifeline_.Send(frame, std::chrono::steady_clock::now() + kDonePatience));
  Result<UniqueFd> memory = AwaitMemory(frame.memory, deadline);
  // Without its answer, the next request would get it.
  if (memory.status().code() == Code::kInternal || memory.status().code() == Code::kDeadlineExceeded)
    broken_ = Internal(memory.status().message());
  return memory;
}

Result<UniqueFd> Producer::AwaitMemory(const MemoryRequest& request, const Deadline& deadline) {
  for (;;) {
    UniqueFd memory;
    ASSIGN_OR_RETURN(const LifelineFrame frame, lifeline_.Receive(deadline, &memory));
    if (frame.kind != static_cast<uint32_t>(LifelineKind::kMemory)) {
      ASSIGN_OR_RETURN(const ProducerTask task, Begin(frame));
      begun_.push_back(task);
      continue;
    }
    if (frame.memory.task != request.task) return BrokenTask("memory that nobody asked for");
    if (frame.code == 0) {
      if (!memory) {
        return ResourceExhausted(
            "receive the descriptor of a batch's memory: this process may be at its limit of open files "
            "(ulimit -n)");
      }
      const Status sealed = CheckSealedSize(memory.get(), request.bytes);
      if (!sealed.ok()) return BrokenTask(sealed.message());
      return memory;
    }
    return Status(ErrorCodeOf(frame.code),
                  EscapeUnprintable(std::string_view(frame.text, ::strnlen(frame.text, sizeof frame.text))));
  }
}

Result<ProducerTask> Producer::Begin(const LifelineFrame& frame) {
  if (frame.kind != static_cast<uint32_t>(LifelineKind::kTask))
    return BrokenTask("a frame of kind " + std::to_string(frame.kind));
  const ProducerTask& task = frame.produce;
  if (task.task == 0) return BrokenTask("its number is 0");
  if (task.slot >= invitation_.slot_count) {
    return BrokenTask("it is for slot " + std::to_string(task.slot) + " of " +
                      std::to_string(invitation_.slot_count));
  }
  if (task.samples == 0 || task.samples > invitation_.layout.batch_size) {
    return BrokenTask("it has " + std::to_string(task.samples) + " samples, where 1 to " +
                      std::to_string(invitation_.layout.batch_size) + " are possible");
  }
  const MutexLock lock(mutex_);
  for (const ProducerTask& other : open_) {
    if (other.task == task.task) return BrokenTask("its number is that of a task not done yet");
  }
  if (open_[task.slot].task != 0)
    return BrokenTask("slot " + std::to_string(task.slot) + " is being filled already");
  return open_[task.slot] = task;
}

Result<ProducerTask> Producer::Find(uint64_t task) const {
  RETURN_IF_ERROR(CheckProcess());
  const MutexLock lock(mutex_);
  return FindLocked(task);
}

Result<ProducerTask> Producer::FindLocked(uint64_t task) const {
  for (const ProducerTask& open : open_) {
    if (task != 0 && open.task == task) return open;
  }
  return FailedPrecondition("this producer has no such task, or the task was done already");
}

std::byte* Producer::Address(const ProducerTask& task, const TensorPlace& tensor) const {
  return arena_.data() + task.slot * invitation_.layout.slot_stride + tensor.offset;
}

Status Producer::Done(uint64_t task, const Status& failure) {
  LifelineFrame frame = MakeLifelineFrame(LifelineKind::kTaskDone);
  frame.code = static_cast<uint32_t>(failure.code());
  if (!failure.ok()) CopyText(failure.message(), frame.text);
  RETURN_IF_ERROR(CheckProcess());
  {
    const MutexLock lock(mutex_);
    ASSIGN_OR_RETURN(frame.produce, FindLocked(task));
    // Before the daemon knows, since it may give the slot to Next again at once.
    open_[frame.produce.slot] = {};
  }
  return lifeline_.Send(frame, std::chrono::steady_clock::now() + kDonePatience);
}

}  // namespace pinfeed
