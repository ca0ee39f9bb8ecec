// SPDX-License-Identifier: Apache-2.0
// The client's end of a session's lifeline. In: the token. Out: the session's descriptors, once; then the
// news that the daemon is gone.
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

// Purpose: keeps the session alive while it lives. Owns the socket. Threads: HungUp and SayBye from any
// thread; nothing here blocks after Attach. Errors: Attach says what the daemon answered. A moved-from
// lifeline is closed.
class Lifeline {
 public:
  Lifeline() = default;
  // Connects, sends the token, receives exactly `fd_count` descriptors (close-on-exec) into `fds`. On failure
  // none is left open, and the daemon is told.
  static Result<Lifeline> Attach(const std::string& path, const std::array<uint8_t, kTokenBytes>& token,
                                 size_t fd_count, SteadyTime deadline, std::vector<UniqueFd>* fds);

  // True when the daemon closed its end or died. A lifeline stays hung up.
  bool HungUp() const;
  // Tells the daemon that every mapping is gone. Best effort: a daemon that is gone needs no farewell.
  void SayBye();
  // Tells the daemon that no further batch is taken. Best effort.
  void SayLeave();
  // Ends the connection without a farewell; it stays open for nothing but its own end.
  void HangUp();
  // Waits for the daemon's hang-up, which follows a farewell once the session's memory is back. False at
  // `deadline`.
  bool WaitForHangUp(SteadyTime deadline) const;

 private:
  explicit Lifeline(UniqueFd socket) : socket_(std::move(socket)) {}
  void Say(LifelineKind kind);
  UniqueFd socket_;
};

}  // namespace pinfeed
