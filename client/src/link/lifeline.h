// SPDX-License-Identifier: Apache-2.0
// The client's end of a lifeline, a session's or a producer's. In: the token. Out: the descriptors, once;
// later, notice that the daemon is gone, and a producer's frames.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/src/base/deadline.h"
#include "client/src/base/unix_socket.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Another member of the session's group, for which it decodes (DecodedReaders).
struct ReaderInvitation {
  UniqueFd socket;
  uint64_t epoch = 0;  // the first batch that it gets
  uint64_t batch_index = 0;
};

// A frame with a token: the first one, of the kind kHello or kProduce.
LifelineFrame FirstFrame(LifelineKind kind, const std::array<uint8_t, kTokenBytes>& token);

// Purpose: keeps the session, or the producer, attached as long as it lives. Owns the socket. Threads:
// any; Receive and ReceiveReader from one at a time. Only functions with a deadline block. A moved-from
// lifeline is closed.
class Lifeline {
 public:
  Lifeline() = default;
  // Connects, sends the first frame and receives `fd_count` descriptors (close-on-exec) into `fds`, or one
  // more if `and_link`. Errors: the daemon's refusal; kUnavailable if it hung up; kDeadlineExceeded;
  // kResourceExhausted at the limit of descriptors; kInternal if it breaks the protocol. Then no descriptor
  // stays open, and a daemon that may have attached the session gets a bye.
  static Result<Lifeline> Attach(const std::string& path, const LifelineFrame& first, size_t fd_count,
                                 SteadyTime deadline, std::vector<UniqueFd>* fds, bool and_link = false);

  // To be polled for the daemon's end of it (POLLRDHUP).
  int fd() const { return socket_.get(); }
  // Whether the daemon closed its end or died. Once true, it stays true.
  bool HungUp() const;
  // Tells the daemon that all mappings are gone. Best effort: a daemon that is gone does not need it.
  void SayBye();
  // Tells the daemon that no more batches are taken. Best effort.
  void SayLeave();
  // Shuts the connection down without a bye. The socket stays open until destruction.
  void HangUp();
  // Waits for the daemon to hang up, which it does after a bye once it has reclaimed the session's memory.
  // Returns false at `deadline`.
  bool WaitForHangUp(SteadyTime deadline) const;

  // Waits for the next frame that the daemon sends to a producer. kOutOfRange: the daemon has hung up.
  // kDeadlineExceeded at the deadline. kInternal: the frame has another size or magic, or brings descriptors
  // that do not belong to it. A kMemory brings one, which goes to `memory`.
  Result<LifelineFrame> Receive(const Deadline& deadline, UniqueFd* memory);
  // Returns what the daemon sent to a session meanwhile; nothing: no reader. Never blocks. Frames of other
  // kinds are dropped. kInternal: the daemon broke the protocol; kResourceExhausted: the socket was lost. The
  // next call has the next frame.
  Result<std::optional<ReaderInvitation>> ReceiveReader();
  // Sends a frame. Waits at most until `deadline` while the daemon does not read. kOutOfRange: the daemon has
  // hung up.
  Status Send(const LifelineFrame& frame, SteadyTime deadline);

 private:
  explicit Lifeline(UniqueFd socket) : socket_(std::move(socket)) {}
  void Say(LifelineKind kind);
  UniqueFd socket_;
};

}  // namespace pinfeed
