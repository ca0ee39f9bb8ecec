// SPDX-License-Identifier: Apache-2.0
// The client's end of a session's lifeline. In: the token. Out: the session's descriptors, once; later,
// notice that the daemon is gone.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "client/src/unix_socket.h"
#include "common/base/result.h"
#include "common/base/unique_handle.h"
#include "common/wire/shared_page.h"

namespace pinfeed {

// Purpose: keeps the session open as long as it lives. Owns the socket. Threads: HungUp and SayBye from any
// thread; nothing blocks after Attach. Errors: Attach returns the daemon's refusal. A moved-from lifeline is
// closed.
class Lifeline {
 public:
  Lifeline() = default;
  // Connects, sends the token and receives exactly `fd_count` descriptors (close-on-exec) into `fds`. On
  // failure no descriptor stays open, and the daemon is told.
  static Result<Lifeline> Attach(const std::string& path, const std::array<uint8_t, kTokenBytes>& token,
                                 size_t fd_count, SteadyTime deadline, std::vector<UniqueFd>* fds);

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

 private:
  explicit Lifeline(UniqueFd socket) : socket_(std::move(socket)) {}
  void Say(LifelineKind kind);
  UniqueFd socket_;
};

}  // namespace pinfeed
