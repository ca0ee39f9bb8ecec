// SPDX-License-Identifier: Apache-2.0
#include "client/src/decode/decoded_readers.h"

#include <poll.h>

#include <cerrno>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "client/src/base/client_log.h"
#include "common/os/blocked_signals.h"
#include "common/os/socket_message.h"
#include "common/os/start_thread.h"

namespace pinfeed {

void DecodedReaders::Accept() {
  while (true) {
    Result<std::optional<ReaderInvitation>> received = Receive();
    if (received.ok() && !received->has_value()) return;
    const Status added = received.ok() ? Add(*std::move(*received)) : received.status();
    if (added.ok()) continue;
    ClientLog(PF_LOG_WARNING,
              "another member of this broadcast has to decode its images itself: " + added.message());
  }
}

Result<std::optional<ReaderInvitation>> DecodedReaders::Receive() {
  const MutexLock lock(mutex_);
  if (lifeline_ == nullptr) return std::optional<ReaderInvitation>();
  return lifeline_->ReceiveReader();
}

Status DecodedReaders::Add(ReaderInvitation invitation) {
  Reader reader{.socket = UniqueLink(invitation.socket.release())};
  {
    const MutexLock lock(mutex_);
    reader.id = next_id_++;
    if (!wake_) {
      ASSIGN_OR_RETURN(wake_, WakeEvent::Create());
    }
  }
  const uint64_t id = reader.id;
  ring_.AddReader(id, {invitation.epoch, invitation.batch_index});
  bool ended = false;
  {
    const MutexLock lock(mutex_);
    ended = ended_;
    if (!ended) {
      accepted_.push_back(std::move(reader));
      wake_->Set();
    }
  }
  if (ended) {
    ring_.RemoveReader(id);
    return Unavailable("this process decodes no more");
  }
  if (thread_.joinable()) return OkStatus();
  const BlockedSignals blocked;  // as for decode threads
  ring_.BeginThread();
  try {
    thread_ = StartThread("pf-share", [this] {
      const LibraryThread library_thread;
      try {
        Serve();
      } catch (const std::bad_alloc&) {  // the readers decode for themselves
      }
      End();
    });
  } catch (const std::exception& error) {  // std::system_error, std::bad_alloc
    End();
    return ResourceExhausted("start a thread: " + std::string(error.what()));
  }
  return OkStatus();
}

void DecodedReaders::Wake() {
  const MutexLock lock(mutex_);
  if (wake_) wake_->Set();
}

void DecodedReaders::Stop() {
  const MutexLock lock(mutex_);
  lifeline_ = nullptr;
  if (wake_) wake_->Set();
}

void DecodedReaders::Join() {
  if (thread_.joinable()) thread_.join();
}

void DecodedReaders::Serve() {
  std::vector<Reader*> ready;
  while (!ring_.IsAtEnd()) {
    TakeAccepted();
    for (const auto& reader : readers_)
      if (const Status answered = Answer(*reader); !answered.ok()) Drop(*reader, answered);
    std::erase_if(readers_, [](const auto& reader) { return !reader->socket; });
    Poll(&ready);
    for (Reader* const reader : ready)
      if (const Status received = ReceiveRequest(*reader); !received.ok()) Drop(*reader, received);
    std::erase_if(readers_, [](const auto& reader) { return !reader->socket; });
  }
}

void DecodedReaders::End() {
  std::vector<Reader> accepted;
  {
    const MutexLock lock(mutex_);
    ended_ = true;
    accepted_.swap(accepted);
  }
  for (const Reader& reader : accepted) ring_.RemoveReader(reader.id);
  for (const auto& reader : readers_) ring_.RemoveReader(reader->id);
  readers_.clear();
  ring_.EndThread();
}

void DecodedReaders::TakeAccepted() {
  const MutexLock lock(mutex_);
  for (Reader& reader : accepted_) readers_.push_back(std::make_unique<Reader>(std::move(reader)));
  accepted_.clear();
}

void DecodedReaders::Poll(std::vector<Reader*>* ready) {
  ready->clear();
  std::vector<pollfd> entries;
  {
    const MutexLock lock(mutex_);
    entries.push_back({wake_->fd(), POLLIN, 0});
  }
  for (const auto& reader : readers_) entries.push_back({reader->socket.get(), POLLIN, 0});
  if (::poll(entries.data(), entries.size(), -1) < 0) return;  // EINTR, or the kernel's memory is short
  if (entries[0].revents != 0) {
    const MutexLock lock(mutex_);
    wake_->Clear();
  }
  for (size_t i = 0; i < readers_.size(); ++i)
    if (entries[i + 1].revents != 0) ready->push_back(readers_[i].get());
}

Status DecodedReaders::ReceiveRequest(Reader& reader) {
  DecodedRequest request{};
  SocketMessage message =
      ReceiveSocketMessage(reader.socket.get(), std::as_writable_bytes(std::span(&request, 1)));
  if (message.error == EAGAIN) return OkStatus();
  if (message.is_end() || message.error == ECONNRESET) return Unavailable("it has left");
  if (message.error != 0) return ErrnoStatus("receive its requests", message.error);
  RETURN_IF_ERROR(CheckRequest(message, request, ring_.layout()));
  const DecodeRing::Place place = PlaceOf(request);
  if (reader.asked || (reader.last && place <= *reader.last))
    return Internal("the other process sent a request out of order");
  CopyToForeign& memory = reader.memory[request.entry];
  if (message.fds.size() != (memory == nullptr ? 1 : 0))
    return Internal("the other process sent " + std::to_string(message.fds.size()) + " descriptors");
  if (memory == nullptr) {
    ASSIGN_OR_RETURN(memory, engine_->Import(std::move(message.fds.front()), request.bytes));
  }
  reader.asked = request;
  reader.last = place;
  return OkStatus();
}

Status DecodedReaders::Answer(Reader& reader) {
  if (!reader.asked) return OkStatus();
  const DecodedRequest request = *reader.asked;
  ASSIGN_OR_RETURN(const std::optional<DecodeRing::ReadyBatch> batch,
                   ring_.FetchFor(reader.id, PlaceOf(request)));
  if (!batch) return OkStatus();
  if (batch->samples != request.samples)
    return Internal("the other process sent a request for " + std::to_string(request.samples) +
                    " samples of a batch that has " + std::to_string(batch->samples));
  const Status copied = reader.memory[request.entry](batch->memory, request.bytes);
  ring_.Fetched(reader.id, batch->sequence);
  RETURN_IF_ERROR(copied);
  RETURN_IF_ERROR(SendDecodedFrame(reader.socket.get(), PackReply(request, batch->failures), -1));
  reader.asked.reset();
  return OkStatus();
}

void DecodedReaders::Drop(Reader& reader, const Status& why) {
  ring_.RemoveReader(reader.id);
  // Members come and go.
  if (!ring_.IsAtEnd())
    ClientLog(why.code() == Code::kUnavailable ? PF_LOG_INFO : PF_LOG_WARNING,
              "this process decodes no more for another member of its broadcast: " + why.message());
  reader.socket.reset();
}

}  // namespace pinfeed
